"""Simulation: a node under a workload, in virtual time, with the same engines that page in a real node.

    from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Scenario, simulate

    result = simulate(Scenario(
        length="10min",
        node=NodeSpec(memory="1GB"),
        queues=[QueueSpec(name="orders")],
        publishers=[PublisherSpec(queue="orders", rate=2000, body="2kB")],
        consumers=[ConsumerSpec(queue="orders", rate=1500)],
    ))
    result.timeline, result.node, result.summary

SimPy drives the time (``pip install "warrenmq[sim]"``). What is real and what is modelled:
:mod:`warren.simulation.node`.
"""

from __future__ import annotations

from warren.simulation.result import Result
from warren.simulation.running import Simulation, simulate
from warren.simulation.scenarios.curves import Bursts, Constant, Daily, Trace
from warren.simulation.scenarios.node_spec import RABBITMQ_MEMORY, Disk, MessageMemory, NodeSpec
from warren.simulation.scenarios.scenario import ConsumerSpec, Event, Outage, PublisherSpec, QueueSpec, Scenario
from warren.simulation.scenarios.sizes import ConstantSize, EmpiricalSize, LognormalSize
from warren.simulation.scenarios.units import ScenarioError
from warren.simulation.toml_file import load_scenario

__all__ = [
    "RABBITMQ_MEMORY",
    "Bursts",
    "Constant",
    "ConstantSize",
    "ConsumerSpec",
    "Daily",
    "Disk",
    "EmpiricalSize",
    "Event",
    "LognormalSize",
    "MessageMemory",
    "NodeSpec",
    "Outage",
    "PublisherSpec",
    "QueueSpec",
    "Result",
    "Scenario",
    "ScenarioError",
    "Simulation",
    "Trace",
    "load_scenario",
    "simulate",
]
