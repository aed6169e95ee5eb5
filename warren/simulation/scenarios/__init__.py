"""What a scenario consists of: node, queues, publishers, consumers and events, and the forms of their values.

:mod:`~warren.simulation.scenarios.scenario` and :mod:`~warren.simulation.scenarios.node_spec` have the parts of a
scenario; the other modules have what a part can hold: rates, sizes, times, and what a running node recorded. Nothing
here is simulated.
"""
