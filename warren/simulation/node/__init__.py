"""The simulated node: its queues, stores, memory monitor, alarms, publishers and consumers, in virtual time.

The engines are the real ones: queues, stores, the memory monitor and the alarms are the objects that work in a running
node. Modelled are the clock, the time that a disk takes, the memory that a message takes, and the clients.
"""
