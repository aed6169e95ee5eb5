"""Streams, as RabbitMQ keeps them: a log of chunks in segments (Osiris), read as a restarting broker reads it.

*Files* give chunks (:mod:`warren.salvage.streams.stream_log`), chunks give records
(:mod:`warren.salvage.streams.sub_batches`), and a record is a message in AMQP 1.0, which a consumer gets in AMQP 0-9-1
(:mod:`warren.salvage.streams.stream_records`).
"""
