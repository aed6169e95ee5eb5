"""``format("warren")``: options, schemas, kinds, and that Spark reads what is read in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from tests.support.pipeline_tools import RABBITMQ, ROCKETMQ, rabbitmq_node, read_rows, rocketmq_node
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, of) for name, of in types.items()])


@pytest.mark.spark
def test_spark_reads_the_queues_of_all_golden_nodes_in_one_load(spark: SparkSession) -> None:
    paths = [rabbitmq_node(scenario) for scenario in RABBITMQ]
    frame = spark.read.format("warren").option("table", "queues").load(paths)
    assert [row.asDict() for row in frame.collect()] == read_rows("queues", *paths)
    wanted = frame.filter(frame.queue == "orders").collect()
    assert [row.asDict() for row in wanted] == [row for row in read_rows("queues", *paths) if row["queue"] == "orders"]


def test_columns_that_a_schema_leaves_out_are_not_made() -> None:
    rows = read_rows("queues", rabbitmq_node(RABBITMQ[0]), schema=columns(queue=StringType(), ready=LongType()))
    assert [set(row) for row in rows] == [{"queue", "ready"}] * len(rows)
    assert rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "nonsense"}, "there is no table 'nonsense'"),
        (
            {"table": "queues", "partition_byte": "1"},
            "option 'partitionbyte': unknown; did you mean 'partition_bytes'",
        ),
        ({"table": "queues", "colour": "red"}, "option 'colour': unknown; known are batch_bytes,"),
        ({"table": "queues", "partition_bytes": "0"}, "option partition_bytes is '0'"),
        ({"table": "queues", "partition_bytes": "many"}, "option partition_bytes is 'many'"),
        ({"table": "queues", "mode": "lenient"}, "option mode is 'lenient'"),
        ({"table": "queues", "bodies": "no"}, "option bodies is 'no'"),
        ({"table": "queues", "set": "maxIndexNum"}, "option set: expected name=value, not 'maxIndexNum'"),
        ({"table": "queues", "schema": columns(nonsense=LongType())}, "the table queues has no column 'nonsense'"),
        ({"table": "queues", "schema": columns(ready=StringType())}, "the column ready of queues is bigint"),
    ],
)
def test_what_cannot_be_asked_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WarrenError, match=said):
        read_rows(options.pop("table"), rabbitmq_node(RABBITMQ[0]), **options)


def test_a_table_that_a_directory_does_not_have_is_an_error() -> None:
    node = rocketmq_node(ROCKETMQ[0])
    with pytest.raises(WarrenError, match=f"{node}: is a topic store, which has no table queues"):
        read_rows("queues", rabbitmq_node(RABBITMQ[0]), node)


def test_a_path_without_anything_is_an_error() -> None:
    with pytest.raises(WarrenError, match="/nowhere: no such directory"):
        read_rows("queues", "/nowhere")
    with pytest.raises(WarrenError, match=r"/nowhere/\*: nothing matches"):
        read_rows("queues", "/nowhere/*")
