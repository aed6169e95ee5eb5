"""Topic stores of a broker that is not running: RocketMQ's, and warren's own, which are the same.

Where one lies: :mod:`~warren.salvage.rocketmq.store_places`. Which settings its files tell:
:mod:`~warren.salvage.rocketmq.inference`. Opened, without changing it, as the original would find it after its
recovery: :mod:`~warren.salvage.rocketmq.rocketmq_store`.
"""
