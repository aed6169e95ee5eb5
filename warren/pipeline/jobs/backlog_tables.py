"""The tables of the backlog: how much waits in the queues, how old it is, how it came, what of it occurs twice.

Each one is a function that takes DataFrames and returns one. Two of them describe RabbitMQ's messages and RocketMQ's
records under the same names (:func:`waiting_messages`, :func:`waiting_records`); the others use the results:

=============  ====================================================================================================
``queues``     a queue: messages, bytes, sizes, the oldest
``groups``     a consumer group's part of a topic's queue: what it has not consumed yet
``sizes``      how large the messages are, by powers of two
``ages``       how old they are, by powers of ten of seconds
``rates``      how many came in a minute
``keys``       the routing keys (RocketMQ: the tags) with most messages
``repeated``   bodies that are there more than once
=============  ====================================================================================================

*When a message came* is given by its property ``timestamp`` (seconds; numbers from 10^11 on are milliseconds, as some
publishers write them), else by the time of its latest entry in ``x-death``, which is when it was dead-lettered; else it
is not known, and such messages are counted separately. RocketMQ stores it with every record: ``store_timestamp``.

No file says *when a message went*. So ``rates`` has what came; for RocketMQ also how much of that *every* group which
reads the queue has consumed by now, whenever it was.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from warren.msg_store.commit_log.commit_log_format import PREPARED

WAITING: Final = (
    "node",
    "kind",
    "vhost",
    "queue",
    "queue_id",
    "number",
    "bytes",
    "body_bytes",
    "came_ms",
    "exchange",
    "routing_key",
    "body_sha256",
)
"""The columns of waiting messages: ``kind`` is rabbitmq or rocketmq; a topic is the ``queue`` and
the ``exchange``, the tags are the ``routing_key``; ``number`` is the position in the queue, or the queue offset."""

QUEUE: Final = ("node", "kind", "vhost", "queue", "queue_id")

MESSAGE_COLUMNS: Final = (
    "node",
    "vhost",
    "queue",
    "position",
    "size",
    "exchange",
    "routing_keys",
    "properties",
    "headers",
    "body_sha256",
)
RECORD_COLUMNS: Final = (
    "node",
    "topic",
    "queue_id",
    "queue_offset",
    "size",
    "store_timestamp",
    "sys_flag",
    "tags",
    "body",
)
"""What is read of the tables ``messages`` and ``records``."""

LEAST_MS: Final = 10**11
"""Smaller timestamps are seconds."""

MINUTE_MS: Final = 60_000
_ACCURACY: Final = 10_000


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def waiting_messages(messages: DataFrame) -> DataFrame:
    """Return the table ``messages`` with the columns :data:`WAITING`."""
    timestamp = F.get_json_object("properties", "$.timestamp").cast("bigint")
    dead_lettered = F.get_json_object("headers", "$['x-death'][0].time").cast("bigint")
    arrival = F.coalesce(timestamp, dead_lettered)
    columns = {
        "kind": F.lit("rabbitmq"),
        "queue_id": F.lit(None).cast("int"),
        "number": F.col("position"),
        "bytes": F.col("size").cast("bigint"),
        "body_bytes": F.col("size").cast("bigint"),
        "came_ms": F.when(arrival >= LEAST_MS, arrival).otherwise(arrival * 1000),
        "routing_key": F.try_element_at("routing_keys", F.lit(1)),
    }
    return messages.withColumns(columns).select(*WAITING)


def waiting_records(records: DataFrame) -> DataFrame:
    """Return the records that are in a queue, with the columns :data:`WAITING`; ``bytes`` is the size of the record."""
    is_queued = F.col("sys_flag").bitwiseAND(PREPARED) == 0
    columns = {
        "kind": F.lit("rocketmq"),
        "vhost": F.lit(None).cast("string"),
        "queue": F.col("topic"),
        "number": F.col("queue_offset"),
        "bytes": F.col("size").cast("bigint"),
        "body_bytes": F.length("body").cast("bigint"),
        "came_ms": F.col("store_timestamp"),
        "exchange": F.col("topic"),
        "routing_key": F.col("tags"),
        "body_sha256": F.sha2("body", 256),
    }
    return records.where(is_queued).withColumns(columns).select(*WAITING)


def _counted() -> tuple[Column, Column]:
    """The number of messages, and their bytes."""
    return F.count("*").alias("messages"), F.sum("bytes").alias("bytes")


# ── of each queue ────────────────────────────────────────────────────────────────────────────────────────────────────


def queues(waiting: DataFrame, now: DataFrame) -> DataFrame:
    """A row for each queue with messages. ``now``: for each node the moment to count ages from, ``now_ms``."""
    counts = waiting.groupBy(*QUEUE).agg(
        *_counted(),
        F.min("bytes").alias("smallest_bytes"),
        F.percentile_approx("bytes", 0.5, _ACCURACY).alias("median_bytes"),
        F.percentile_approx("bytes", 0.99, _ACCURACY).alias("p99_bytes"),
        F.max("bytes").alias("largest_bytes"),
        F.count("came_ms").alias("timed"),
        F.min("came_ms").alias("oldest_ms"),
        F.max("came_ms").alias("newest_ms"),
    )
    aged = counts.join(F.broadcast(now), "node", "left").withColumn("oldest_age_s", _age_s("oldest_ms"))
    return _in_order(aged.drop("now_ms"), F.desc("messages"), *QUEUE)


def _in_order(frame: DataFrame, *columns: str | Column) -> DataFrame:
    """Sort a few rows in one partition, without the sampling of Spark's own sort."""
    return frame.repartition(1).sortWithinPartitions(*columns)


def _age_s(column: str) -> Column:
    """Whole seconds before ``now_ms``; 0 for later times, from a clock that was ahead."""
    age = F.floor((F.col("now_ms") - F.col(column)) / 1000).cast("bigint")
    return F.when(age < 0, F.lit(0)).otherwise(age)


def groups(offsets: DataFrame, waiting: DataFrame, now: DataFrame) -> DataFrame:
    """Return a row for each consumer group and queue: the table ``offsets``, with the group's lag.

    ``lag_bytes`` and ``oldest_ms`` cover the messages that are there, not those that have expired.
    """
    group_columns = ["node", "group", "queue", "queue_id"]
    read = offsets.withColumnRenamed("topic", "queue")
    ahead = waiting.where("kind = 'rocketmq'").select("node", "queue", "queue_id", "number", "bytes", "came_ms")
    unread = (
        read.join(ahead, ["node", "queue", "queue_id"])
        .where(F.col("number") >= F.col("offset"))
        .groupBy(*group_columns)
        .agg(F.sum("bytes").alias("lag_bytes"), F.min("came_ms").alias("oldest_ms"))
    )
    lags = (
        read.join(unread, group_columns, "left")
        .fillna(0, ["lag_bytes"])
        .join(F.broadcast(now), "node", "left")
        .withColumn("oldest_age_s", _age_s("oldest_ms"))
        .select(*group_columns, "offset", "max_offset", "lag", "lag_bytes", "oldest_ms", "oldest_age_s")
    )
    return _in_order(lags, F.desc("lag"), *group_columns)


# ── distributions ────────────────────────────────────────────────────────────────────────────────────────────────────


def sizes(waiting: DataFrame) -> DataFrame:
    """Messages by size: from a power of two (or 0) to below the next."""
    return _by_powers(waiting, F.col("bytes"), F.bin("bytes"), 2, "bytes")


def ages(waiting: DataFrame, now: DataFrame) -> DataFrame:
    """Messages by age: from a power of ten of seconds (or 0) to below the next; nulls: messages of unknown age."""
    aged = waiting.join(F.broadcast(now), "node", "left").withColumn("age_s", _age_s("came_ms"))
    return _by_powers(aged, F.col("age_s"), F.col("age_s").cast("string"), 10, "s")


def _by_powers(waiting: DataFrame, value: Column, digits: Column, base: int, unit: str) -> DataFrame:
    """Messages by a value, whose ``digits`` are in that base."""
    low, high = f"from_{unit}", f"to_{unit}"
    least = F.when(value == 0, F.lit(0)).otherwise(F.pow(F.lit(base), F.length(digits) - 1)).cast("bigint")
    counts = (
        waiting.groupBy("node", "kind", least.alias(low))
        .agg(*_counted())
        .withColumn(high, F.greatest(F.col(low) * base, F.when(F.col(low).isNotNull(), F.lit(1))))
        .select("node", "kind", low, high, "messages", "bytes")
    )
    return _in_order(counts, "node", "kind", F.col(low).asc_nulls_last())


def rates(waiting: DataFrame, offsets: DataFrame) -> DataFrame:
    """Messages by the minute in which they came, of each vhost (RabbitMQ) or topic (RocketMQ, as ``queue``).

    ``consumed``: how many of them every group that reads their queue has passed; null if no group reads it.
    """
    passed = (
        offsets.groupBy("node", F.col("topic").alias("queue"), "queue_id")
        .agg(F.min("offset").alias("passed"))
        .withColumn("kind", F.lit("rocketmq"))
    )
    minute = F.floor(F.col("came_ms") / MINUTE_MS).cast("bigint") * MINUTE_MS
    topic = F.when(F.col("kind") == "rocketmq", F.col("queue"))
    consumed = F.when(F.col("passed").isNotNull(), (F.col("number") < F.col("passed")).cast("bigint"))
    counts = (
        waiting.where("came_ms is not null")
        .join(F.broadcast(passed), ["node", "kind", "queue", "queue_id"], "left")
        .groupBy("node", "kind", "vhost", topic.alias("queue"), minute.alias("minute_ms"))
        .agg(*_counted(), F.sum(consumed).alias("consumed"))
    )
    return _in_order(counts, "minute_ms", "node", "kind", "vhost", "queue")


# ── what most of it is ───────────────────────────────────────────────────────────────────────────────────────────────


def keys(waiting: DataFrame, top: int = 100) -> DataFrame:
    """The routing keys with most messages; of RocketMQ the tags."""
    key_columns = ["node", "kind", "vhost", "exchange", "routing_key"]
    counts = waiting.groupBy(*key_columns).agg(*_counted(), F.countDistinct("queue").alias("queues"))
    return counts.orderBy(F.desc("messages"), *key_columns).limit(top)


def duplicates(waiting: DataFrame) -> DataFrame:
    """Return a row for each body that occurs more than once: its ``bytes``, and those of all copies but one."""
    return (
        waiting.where("body_sha256 is not null and body_bytes > 0")
        .groupBy("body_sha256")
        .agg(
            F.count("*").alias("messages"),
            F.max("body_bytes").alias("bytes"),
            (F.sum("body_bytes") - F.max("body_bytes")).alias("repeated_bytes"),
            F.countDistinct(*[F.coalesce(F.col(name).cast("string"), F.lit("")) for name in QUEUE]).alias("queues"),
            F.min(F.struct("node", "vhost", "queue")).alias("first"),
        )
        .where("messages > 1")
        .select(
            "body_sha256", "messages", "bytes", "repeated_bytes", "queues", "first.node", "first.vhost", "first.queue"
        )
    )


def repeated(duplicates: DataFrame, top: int = 100) -> DataFrame:
    """Return the duplicates that take most room."""
    return duplicates.orderBy(F.desc("repeated_bytes"), F.desc("messages"), "body_sha256").limit(top)


def repeated_total(duplicates: DataFrame) -> DataFrame:
    """Return one row: how many different bodies are there more than once, and their copies after the first."""
    return duplicates.agg(
        F.count("*").alias("bodies"),
        F.coalesce(F.sum(F.col("messages") - 1), F.lit(0)).alias("messages"),
        F.coalesce(F.sum("repeated_bytes"), F.lit(0)).alias("bytes"),
    )
