# %% [markdown]
# # How much memory for an hour without consumers?
#
# Consumers will be away for an hour. 10 messages a second come in, 3 kB each. How much memory does the node need
# so that publishers are never held back? By bisection, a simulation for each guess:
#
#     python examples/simulation/size_a_node.py

# %%
from __future__ import annotations

import attrs

from warren.simulation import ConsumerSpec, Event, NodeSpec, PublisherSpec, QueueSpec, Result, Scenario, simulate

MB = 1_000_000

# %% [markdown]
# The hour begins at once; the rest is the catch-up, which often needs more memory than the outage
# (docs/simulation-examples.md).

# %%
scenario = Scenario(
    name="an hour without consumers",
    length="65min",
    step="15s",
    granularity="15s",
    queues=[QueueSpec(name="orders")],
    publishers=[PublisherSpec(queue="orders", rate=10, body="3kB")],
    consumers=[ConsumerSpec(queue="orders", rate=200, prefetch=2000)],
    events=[Event(what="consumers-down", at=0, until="60min")],
)


# %% [markdown]
# A guess is enough if no alarm was set. Messages come in groups here, every 15 s (`granularity`), which makes a run
# cheap. The queue must not take the time between two of them for rest, so it hibernates after a minute. Everything else
# stays as it is, the seed too: so the messages are the same.


# %%
def run(memory: int) -> Result:
    """The hour, on a node with ``memory`` bytes."""
    result = simulate(attrs.evolve(scenario, node=NodeSpec(memory=memory, hibernate_after="1min")))
    node = result.summary["node"]
    print(
        f"{memory / MB:4.0f} MB: at most {node['max_ratio']:.0%} of the watermark, blocked for {node['alarm_s']:.0f} s"
    )
    return result


# %% [markdown]
# More memory is never worse, or nearly so: paging goes in steps. So halve what lies between too little and enough, down
# to a seventh.

# %%
too_little, enough = 0, 400 * MB
best = run(enough)
while enough - too_little > 0.15 * enough:
    guess = (too_little + enough) // 2
    result = run(guess)
    if result.summary["node"]["alarms"]:
        too_little = guess
    else:
        enough, best = guess, result
print(f"{enough / MB:.0f} MB are enough, {too_little / MB:.0f} MB are not")

# %% [markdown]
# How does that compare with the backlog? Most of it is on disk. But small bodies are embedded: they stay in RAM with
# their positions, up to a segment of 16,384 of them (docs/simulation-examples.md), and that is what the node has to
# have room for. With `queue_index_embed_msgs_below = 1024` in the node's settings it needs less.

# %%
timeline = best.queue("orders")
most, in_ram = timeline["message_bytes"].max() / MB, timeline["ram_bytes"].max() / MB
print(f"the backlog: {timeline['len'].max()} messages, {most:.0f} MB; in RAM never more than {in_ram:.0f} MB")
print(f"the node may use {best.summary['node']['limit_bytes'] / MB:.0f} MB of its {enough / MB:.0f}")
