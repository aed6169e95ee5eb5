"""The plain objects that the actors use: queues as their users see them, routing, definitions, memory rules.

*Decisions without threads*: whatever stands here is deterministic and knows one caller at a time. Time, randomness and
files are handed in, so a test drives it by hand and an actor is left with nothing but the turning of messages into
calls. What is made to be read from any thread (:class:`warren.actors.engines.declared.routing.RoutingTable`) says so,
and why it may.
"""
