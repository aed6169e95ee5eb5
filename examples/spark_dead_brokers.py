"""What is on the disks of dead brokers, asked of Spark as one would in a notebook, cell by cell.

    python examples/spark_dead_brokers.py DIRECTORY...

The directories (RabbitMQ's, RocketMQ's or warren's, globs and URIs too) are only read.
"""

from __future__ import annotations

import sys

from warren import pipeline


def main(paths: list[str]) -> None:
    spark = pipeline.session()
    # %% Which queues are there, and how deep are they?
    queues = spark.read.format("warren").option("table", "queues").load(paths).cache()
    for row in queues.groupBy("vhost").sum("ready", "bytes").orderBy("vhost").collect():
        print(f"vhost {row.vhost}: {row['sum(ready)']} messages, {row['sum(bytes)']} bytes")

    # %% What is broken, and what only left over?
    findings = spark.read.format("warren").option("table", "findings").load(paths)
    for row in findings.groupBy("severity").count().orderBy("severity").collect():
        print(f"{row.severity}: {row['count']}")

    # %% The deepest queue's messages: what keys did they come with, which bodies are there twice?
    deepest = queues.orderBy("ready", ascending=False).first()
    if deepest is None:
        return
    messages = spark.read.format("warren").option("table", "messages").load(deepest.node)
    messages = messages.filter((messages.vhost == deepest.vhost) & (messages.queue == deepest.queue)).cache()
    print(f"the deepest queue is {deepest.queue}: {messages.count()} messages")
    keys = messages.selectExpr("explode(routing_keys) as routing_key").groupBy("routing_key").count()
    for row in keys.orderBy("count", "routing_key", ascending=[False, True]).limit(3).collect():
        print(f"{row['count']} with the routing key {row.routing_key}")
    repeated = messages.groupBy("body_sha256").count().filter("count > 1").agg({"count": "sum"}).first()
    print(f"{(repeated and repeated['sum(count)']) or 0} of them have a body that another one has, too")


if __name__ == "__main__":
    main(sys.argv[1:])
