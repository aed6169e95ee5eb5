# %% [markdown]
# # A backlog, looked at
#
# Build a scenario in code, run it, and look at what happened: in DataFrames, and in a plot of one's own.
# The marks `# %%` are cells to VS Code, Spyder, PyCharm and Jupytext. It is plain Python, too:
#
#     python examples/simulation/explore.py

# %%
from __future__ import annotations

from matplotlib.figure import Figure

from warren.simulation import (
    ConsumerSpec,
    LognormalSize,
    NodeSpec,
    Outage,
    PublisherSpec,
    QueueSpec,
    Scenario,
    simulate,
)

# %% [markdown]
# Times are seconds, or texts with a unit; sizes are bytes, or texts with RabbitMQ's units. The bodies spread: half of
# them are smaller than 20 kB, and a few are three times that.

# %%
scenario = Scenario(
    name="explored",
    length="150s",
    granularity="100ms",
    node=NodeSpec(memory="250MB"),
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=200, body=LognormalSize(20_000, 0.5), persistent=0.5)],
    consumers=[ConsumerSpec(queue="orders", rate=400, outages=[Outage(at="30s", lasting="1min")])],
)
result = simulate(scenario)

# %% [markdown]
# The summary is what `summary.json` has: the node, and each queue.

# %%
node, orders = result.summary["node"], result.summary["queues"]["orders"]
print(f"published {orders['published']}, at most {orders['max_ready']} ready, {orders['ready']} at the end")
print(f"memory at most {node['max_ratio']:.0%} of the watermark")
for mark in result.marks:
    print(f"{mark.at_s:6.1f} s  {mark.kind}")

# %% [markdown]
# The timeline is a DataFrame with a row for each queue and second. Which share of the backlog was in RAM, while there
# was one?

# %%
timeline = result.queue("orders").set_index("time_s")
backlog = timeline[timeline["len"] > 1000]
in_ram = backlog["ram_msg_count"] / backlog["len"]
print(f"a backlog for {len(backlog)} s; in RAM {in_ram.max():.0%} of it at first, {in_ram.min():.0%} at worst")

# %% [markdown]
# Where were the messages, when most were there? Nothing is lost between the five.

# %%
fullest = timeline.loc[timeline["len"].idxmax(), ["q4", "q3", "delta", "q2", "q1", "len"]].astype(int)
print(" ".join(f"{name}={count}" for name, count in fullest.items()))

# %% [markdown]
# A plot of one's own: two columns of two tables over one axis of time. (`warren.simulation.plots.draw` draws them all.)

# %%
figure = Figure(figsize=(9, 5), layout="constrained")
above, below = figure.subplots(2, 1, sharex=True)
timeline[["len", "ram_msg_count"]].plot(ax=above, ylabel="messages", xlabel="")
(result.node.set_index("time_s")["ratio"] * 100).plot(ax=below, ylabel="memory, % of the watermark", xlabel="seconds")
figure.savefig("explore.png")
