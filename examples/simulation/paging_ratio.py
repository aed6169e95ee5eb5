# %% [markdown]
# # Which paging ratio?
#
# A queue pages when more than `vm_memory_high_watermark_paging_ratio` of the watermark is used. Lower sounds safer.
# Is it? A sweep over paging ratios and rates, with a consumer that does half of what comes in:
#
#     python examples/simulation/paging_ratio.py

# %%
from __future__ import annotations

from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Scenario
from warren.simulation.heatmap import draw_sweep
from warren.simulation.sweep import sweep

# %%
scenario = Scenario(
    name="Which paging ratio?",
    length="75s",
    granularity="200ms",
    node=NodeSpec(memory="100MB"),
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=200, body="10kB")],
    consumers=[ConsumerSpec(queue="orders", rate=100)],
)

# %% [markdown]
# Each combination is a run of its own, on all cores. A key is the scenario's, as it stands in a file;
# `publishers.rate` is that of every publisher.

# %%
frame = sweep(
    scenario,
    {"node.paging_ratio": [0.1, 0.3, 0.5, 0.7, 0.9], "publishers.rate": [200, 400, 800]},
)

# %% [markdown]
# How much of the watermark was used at most? A row for each paging ratio, a column for each rate.

# %%
used = frame.pivot_table(index="node.paging_ratio", columns="publishers.rate", values="max_ratio")
print((used * 100).round().astype(int).to_string())

# %% [markdown]
# Below 0.5 the ratio changes next to nothing: in RabbitMQ's rule a queue's target is (ram / 2 + rates) / ratio, and as
# long as less than half of the watermark is used that is more than the queue has (docs/simulation-examples.md).
# Queues get a target, and page nothing. What counts is the rate: it decides how far above one half memory comes to
# stand.

# %%
same = used.loc[[0.1, 0.3]].sub(used.loc[0.5]).abs().max().max()
print(f"from 0.1 to 0.5 the most that is used differs by {same:.0%} at most")
print(f"at 0.9 it is {used.loc[0.9].min():.0%} … {used.loc[0.9].max():.0%}")

# %%
draw_sweep(frame, ["node.paging_ratio", "publishers.rate"], ".", title=scenario.name)  # sweep.png
