"""Reads a device's points in cold files with Spark, computes their hashes again, and prints how many there are and differ."""
import hashlib
import struct
import sys

from pyspark.sql import SparkSession


def text(value):
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def leaf_hash(row):
    """The hash of a point: verify/README.md."""
    seconds = struct.pack(">Q", row.time_ns // 1_000_000_000)
    leaf = b"\x01" + text(row.tenant_id) + text(row.device_id) + seconds + row.payload.encode()
    return hashlib.sha256(hashlib.sha256(leaf).digest()).digest()


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
points = spark.read.parquet(sys.argv[1]).where(f"tenant_id = 'acme' AND device_id = '{sys.argv[2]}'")
rows = points.collect()
print("points", len(rows), "different", sum(bytes(row.data_hash) != leaf_hash(row) for row in rows))
values = "CAST(get_json_object(payload, '$.numeric_values.temperature') AS DOUBLE) AS value"
total = points.selectExpr(values).agg({"value": "sum"}).first()[0]
print("sum", total)
spark.stop()
