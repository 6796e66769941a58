"""docs/dataframes.md lists exactly the options and columns that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tiercel.frames import options
from tiercel.frames.columns import available
from tiercel.queues.message.writing import WRITTEN

PAGE = (Path(__file__).parents[3] / "docs/dataframes.md").read_text()


def part(title):
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_cells(text, head):
    table = text.partition(f"| {head} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_option_is_in_its_table():
    assert first_cells(part("Reading"), "option") == list(options._SOURCE)
    assert first_cells(part("Writing"), "option") == list(options._SINK)


def test_every_column_is_in_the_table():
    there = available(options.SourceOptions.read({"url": "amqp://localhost", "queue": "q"})).names
    assert sorted(first_cells(part("Reading"), "column")) == sorted(there)


def test_every_property_that_can_be_written_is_named():
    assert set(re.findall(r"`(\w+)`", part("Writing"))) >= set(WRITTEN)


def test_users_of_kafka_are_sent_to_options_and_columns_that_there_are():
    rows = [line.split("|") for line in part("If you know Spark's Kafka source").splitlines()]
    there = {name for row in rows if len(row) > 3 for name in re.findall(r"`(\w+)`", row[2])}
    columns = available(options.SourceOptions.read({"url": "amqp://localhost", "queue": "q"})).names
    assert there <= {*options._SOURCE, *options._SINK, *columns}
    assert there >= {"url", "queue", "maxMessagesPerTrigger", "partitions", "body", "headers"}


def test_the_code_on_the_page_is_python():
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(block)
