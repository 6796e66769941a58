"""SQL over a queue, as in a notebook: sales per ten seconds and product, and a plot.

Each ``# %%`` begins a cell. To run it as a script: ``python -m tiercel.examples.dataframes.orders
AMQP_URL PLOT.svg``. It needs only RabbitMQ and PySpark.
"""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.dataframe import register_rabbitmq

QUEUE = "orders"
COLORS = ("#4477aa", "#ee6677", "#228833")

# %% Some orders, as a shop would send them


def some_orders(count: int) -> list[bytes]:
    chance = random.Random(1)
    begin = datetime(2026, 1, 1, 12, tzinfo=UTC)
    orders = [
        {
            "at": (begin + timedelta(seconds=chance.uniform(0, 120))).isoformat(),
            "product": chance.choice(["apples", "pears", "plums"]),
            "amount": chance.randint(1, 9),
        }
        for _ in range(count)
    ]
    return [json.dumps(order).encode() for order in orders]


def publish(url: str) -> None:
    declare_queue(url, WorkQueue(name=QUEUE))
    with Publisher(url) as publisher:
        publisher.publish(QUEUE, some_orders(2_000))


# %% The queue as a table


def sales(spark: SparkSession, url: str) -> Any:
    """Return the sales as a pandas table."""
    register_rabbitmq(spark)
    orders = (
        spark.readStream.format("rabbitmq")
        .option("url", url)
        .option("queue", QUEUE)
        .option("fields", "at timestamp, product string, amount int")
        .load()
    )
    orders.createOrReplaceTempView("orders")

    # %% SQL over the table: everything that Spark SQL can do with a stream
    windows = spark.sql(
        """
        select window.start as since, product, sum(amount) as sold
        from orders
        group by window(at, '10 seconds'), product
        """
    )

    # %% Read the orders in the queue; without availableNow it would wait for more
    writer = windows.writeStream.format("memory").queryName("sales").outputMode("complete")
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.sql("select * from sales order by since, product").toPandas()


# %% A plot, without any library


def plot(table: Any) -> str:
    """Return one line per product, as SVG."""
    wide = table.pivot_table(index="since", columns="product", values="sold", fill_value=0)
    scale = 160 / float(wide.to_numpy().max())
    lines = []
    for at, (product, color) in enumerate(zip(wide.columns, COLORS, strict=False)):
        points = [
            f"{20 + 360 * place / max(1, len(wide) - 1):.0f},{180 - value * scale:.0f}"
            for place, value in enumerate(wide[product])
        ]
        lines.append(f'<polyline fill="none" stroke="{color}" points="{" ".join(points)}"/>')
        lines.append(f'<text x="20" y="{12 + 12 * at}" fill="{color}">{product}</text>')
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200">\n{body}\n</svg>\n'


def main(url: str, file: str) -> None:
    publish(url)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # Each partition of a stream has a state on disk: the default, 200, suits a cluster.
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    table = sales(spark, url)
    Path(file).write_text(plot(table))
    print(table.head(6).to_string(index=False))  # noqa: T201 - a notebook shows its table
    print(f"{table['sold'].sum()} sold; the plot is in {file}")  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
