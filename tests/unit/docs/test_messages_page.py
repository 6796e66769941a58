"""docs/messages.md: its topology does what the page says, and its tables are complete."""

import re
from pathlib import Path

from tiercel.queues.broker.declare import Binding
from tiercel.queues.message.properties import PROPERTIES
from tiercel.queues.message.writing import WRITTEN
from tiercel.testing import LocalCluster, feeder_for, with_spouts

PAGE = (Path(__file__).parents[3] / "docs" / "messages.md").read_text()
[CODE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def topology():
    names = {"__name__": "page"}
    exec(compile(CODE, "docs/messages.md", "exec"), names)
    return names["topology"]()


def test_the_topology_on_the_page_runs():
    page = topology()
    feeder = feeder_for(page, "orders")
    properties = {"message_id": "m-1", "headers": {"tenant": "a"}, "priority": 7}
    # Without a broker, the test looks at the tuples that the sink receives.
    with LocalCluster(with_spouts(page, {"orders": feeder})) as cluster:
        feeder.feed(["o-1", "north"], properties=properties)
        feeder.feed(["o-2", "south"], properties={"headers": {}})
        cluster.run_until_idle()
        assert cluster.read_tuples("sort") == [
            ["o-1", "m-1", "a.north", "a", 7],
            ["o-2", None, "unknown.south", "unknown", None],
        ]


def test_every_property_is_in_the_tables_with_its_type():
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    read = {name: type_ for names, type_ in rows for name in re.findall(r"`(\w+)`", names)}
    for name, each in PROPERTIES.items():
        assert f"| {each.type} |" in PAGE
        assert name in read
    for name in WRITTEN:
        assert re.search(rf"^\| .*`{name}`", PAGE, re.MULTILINE), name


def test_every_binding_on_the_page_makes_what_the_page_says():
    found = re.findall(r"^\| `(\(.+?\))` \| (\w+) \|", PAGE, re.MULTILINE)
    assert len(found) == 4
    for binding, type_ in found:
        assert Binding.of(eval(binding)).type == type_
