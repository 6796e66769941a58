"""Every topology that cannot run is refused by ``build`` with one line that says what to do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.pump import Source
from tiercel import (
    BasicBolt,
    Bolt,
    Config,
    DatabaseSink,
    QueueSink,
    Spout,
    TopologyBuilder,
    TopologyError,
    field,
)


class Words(BasicBolt):
    output_fields = "word string, n long"


class Naming(Bolt):
    output_streams = {"named": "word string", "plain": "word string"}  # noqa: RUF012 - as users write it
    direct_streams = frozenset({"named"})


class DirectSource(Source):
    direct_streams = frozenset({"named"})


class Chooser:
    def prepare(self, context, stream, target_tasks):
        pass

    def choose_tasks(self, task_id, values):
        return []


def builder(**settings) -> TopologyBuilder:
    made = TopologyBuilder("words", Config(**settings))
    made.set_spout("source", Source())
    return made


def bolt(
    component: type = Words, name: str = "bolt", source: str = "source", **options
) -> TopologyBuilder:
    made = builder()
    made.set_bolt(name, component(), **options).shuffle_grouping(source)
    return made


def declared(**attributes) -> TopologyBuilder:
    return bolt(type("Declared", (Bolt,), attributes))


def spout(component: Source, **options) -> TopologyBuilder:
    made = builder()
    made.set_spout("spout", component, **options)
    return made


def twice(method: str) -> TopologyBuilder:
    made = builder()
    getattr(made, method)("source", Source() if method == "set_spout" else Words())
    return made


def empty_bolt() -> TopologyBuilder:
    made = builder()
    made.set_bolt("bolt", Words())
    return made


def direct(source_stream: str, *, by: str) -> TopologyBuilder:
    made = bolt(Naming, "naming")
    getattr(made.set_bolt("bolt", Words()), by)("naming", stream=source_stream)
    return made


def subscribed_twice() -> TopologyBuilder:
    made = builder()
    made.set_bolt("bolt", Words()).shuffle_grouping("source").fields_grouping("source", "word")
    return made


def grouped(method: str, *fields) -> TopologyBuilder:
    made = builder()
    getattr(made.set_bolt("bolt", Words()), method)("source", *fields)
    return made


def grouped_by_a_map() -> TopologyBuilder:
    made = TopologyBuilder("by-a-map")
    made.set_spout("source", Source("word string, h map<string,string>"))
    made.set_bolt("bolt", Words()).fields_grouping("source", "word", "h")
    return made


WRONG: list[tuple[str, Callable[[], TopologyBuilder], str]] = [
    ("a name with braces", lambda: TopologyBuilder("a{b}"), "is not a valid topology name"),
    (
        "a name with an escape sequence",
        lambda: TopologyBuilder("a\x1b[31m"),
        "is not a valid topology name",
    ),
    ("an empty name", lambda: TopologyBuilder(""), "is not a valid topology name"),
    ("a name that is no string", lambda: TopologyBuilder(3), "is not a valid topology name"),
    (
        "a config that is a dict",
        lambda: TopologyBuilder("words", {"message_timeout_secs": 5}),
        "the config of topology 'words' is a dict: give a Config, such as Config",
    ),
    (
        "an empty dict for a config",
        lambda: TopologyBuilder("words", {}),
        "the config of topology 'words' is a dict",
    ),
    ("no spout", lambda: TopologyBuilder("words"), "'words' has no spout: add one with set_spout"),
    (
        "a spout that is none",
        lambda: TopologyBuilder("w").set_spout("s", Words()),
        "spout 's' is a Words, not a Spout",
    ),
    (
        "a bolt that is none",
        lambda: builder().set_bolt("b", Source()),
        "not a Bolt, BasicBolt, AsyncBolt, BatchBolt, WindowedBolt or ArrowBolt",
    ),
    (
        "a class for a bolt",
        lambda: builder().set_bolt("b", Words),
        r"bolt 'b' is the class Words \(write Words\(\)\), not a Bolt",
    ),
    (
        "two spouts of one id",
        lambda: twice("set_spout"),
        "two components 'source': give each its own id",
    ),
    ("a bolt with a spout's id", lambda: twice("set_bolt"), "two components 'source'"),
    (
        "a reserved id",
        lambda: bolt(name="__acker"),
        "'__acker' is reserved: do not begin it with two underscores",
    ),
    ("an empty id", lambda: bolt(name=""), "is not a valid id: use a string"),
    ("an id that is no string", lambda: bolt(name=7), "7 is not a valid id: use a string"),
    (
        "no tasks",
        lambda: bolt(parallelism=0),
        "'bolt' has parallelism 0: it must be a number of tasks, at least 1",
    ),
    ("half a task", lambda: bolt(parallelism=1.5), "parallelism 1.5"),
    ("a truth for a number", lambda: bolt(parallelism=True), "parallelism True"),
    ("a bolt that receives nothing", empty_bolt, "bolt 'bolt' receives nothing: subscribe it"),
    (
        "an unknown component",
        lambda: bolt(source="sauce"),
        "'bolt' subscribes to 'sauce', .* there are source, bolt",
    ),
    (
        "an unknown stream",
        lambda: declared_subscription("late"),
        "'bolt' subscribes to stream 'late' of 'source'; its streams are default",
    ),
    (
        "a source without fields",
        lambda: chained_to(type("Silent", (Bolt,), {})),
        "stream 'default' of 'silent'; its streams are none: set output_fields",
    ),
    (
        "an unknown field",
        lambda: grouped("fields_grouping", "wort"),
        "no field 'wort' to group by; the fields are word",
    ),
    (
        "a grouping by a map",
        grouped_by_a_map,
        "field 'h' is a map, by which nothing can be grouped",
    ),
    (
        "a fields grouping without fields",
        lambda: grouped("fields_grouping"),
        "a fields grouping needs at least one field",
    ),
    (
        "a partial key without fields",
        lambda: grouped("partial_key_grouping"),
        "a partial_key grouping needs at least one",
    ),
    (
        "a grouping that is none",
        lambda: grouped("custom_grouping", 3),
        "3 is not a grouping: give an object with prepare and",
    ),
    (
        "a grouping that is a class",
        lambda: grouped("custom_grouping", Chooser),
        " is not a grouping: give an object with prepare and",
    ),
    (
        "a subscription to several components",
        lambda: bolt().set_bolt("other", Words()).shuffle_grouping(["source"]),
        "a grouping needs the id of a component, such as 'orders', not",
    ),
    (
        "streams without fields",
        lambda: declared(output_streams=["large", "small"]),
        "output_streams of 'bolt' must map names of streams to Spark DDL, such as",
    ),
    (
        "direct streams that are one text",
        lambda: declared(direct_streams="named"),
        "direct_streams of 'bolt' must be a set of names, such as {\"name\"}, and is 'named'",
    ),
    (
        "transient attributes that are one text",
        lambda: declared(transient="model"),
        "transient of 'bolt' must be a set of names, such as {\"name\"}, and is 'model'",
    ),
    (
        "more tasks than there are ids",
        lambda: bolt(parallelism=1_000_000),
        "it must be a number of tasks, at least 1 and less than 1,000,000",
    ),
    (
        "a stream subscribed to twice",
        subscribed_twice,
        "subscribes twice to stream 'default' of 'source': keep one of the",
    ),
    (
        "a type that there is not",
        lambda: declared(output_fields="a strong"),
        "stream 'default' of 'bolt': unknown type",
    ),
    (
        "a field twice",
        lambda: declared(output_fields="a long, a long"),
        "names the field 'a' twice",
    ),
    (
        "the default stream twice",
        lambda: declared(output_fields="a long", output_streams={"default": "a long"}),
        "'bolt' declares its default stream twice",
    ),
    (
        "a spout's direct stream without fields",
        lambda: spout(DirectSource()),
        "direct stream 'named' of 'spout' has no fields",
    ),
    (
        "a direct stream without fields",
        lambda: declared(direct_streams={"named"}),
        "direct stream 'named' of 'bolt' has no",
    ),
    (
        "shuffle of a direct stream",
        lambda: direct("named", by="shuffle_grouping"),
        "by shuffle grouping to stream 'named' of 'naming', which is direct: use direct_grouping",
    ),
    (
        "direct grouping of another stream",
        lambda: direct("plain", by="direct_grouping"),
        (
            "by direct grouping to stream 'plain' of 'naming', which is not direct: name "
            "it in direct_streams"
        ),
    ),
    (
        "a component's bad setting",
        lambda: bolt(config={"tick_tuple_freq_secs": 0}),
        "config of 'bolt': tick_tuple_freq_secs must",
    ),
    (
        "ackers of a bolt's own",
        lambda: bolt(config={"ackers": 2}),
        "config of 'bolt': ackers is a setting of the whole topology",
    ),
    (
        "a spout's message timeout",
        lambda: spout(Source(), config={"message_timeout_secs": 5}),
        "config of 'spout': message_time",
    ),
    (
        "a spout's timeouts",
        lambda: spout(Source(), config={"enable_message_timeouts": False}),
        "of the whole topology: set it in",
    ),
    (
        "a spout's grace",
        lambda: spout(Source(), config={"shutdown_grace_secs": 5}),
        "of the whole topology: set it in Config",
    ),
    (
        "a bolt's Spark",
        lambda: bolt(config={"spark_options": {}}),
        "spark_options is a setting of the whole topology: set it in",
    ),
    (
        "a bolt's pending",
        lambda: bolt(config={"max_spout_pending": 5}),
        "max_spout_pending is a setting of spouts, and this is a",
    ),
    (
        "ticks of a spout",
        lambda: spout(Source(), config={"tick_tuple_freq_secs": 5}),
        "of bolts, and this is a spout",
    ),
    (
        "a component's extra",
        lambda: bolt(config={"extra": {"a": 1}}),
        "put its keys among the component's settings themselves",
    ),
    (
        "a whole Config",
        lambda: bolt(config=Config()),
        "config of 'bolt': give only the settings that differ, as a mapping",
    ),
    (
        "settings that are none",
        lambda: bolt(config=["a"]),
        "config of 'bolt': give a mapping with string keys, not",
    ),
    (
        "a setting without a name",
        lambda: bolt(config={1: 2}),
        "config of 'bolt': give a mapping with string keys, not {1: 2}",
    ),
    (
        "a setting that is misspelt",
        lambda: bolt(config={"concurency": 3}),
        "config of 'bolt': there is no setting 'concurency'; did you mean 'concurrency'.* your own",
    ),
    (
        "a setting of a topology that is misspelt",
        lambda: spout(Source(), config={"max_spout_pendin": 3}),
        "config of 'spout': there is no setting 'max_spout_pendin'; did you mean 'max_spout_pendi",
    ),
    (
        "a sink's field that is misspelt",
        lambda: sink(QueueSink(exchange="e", routing_key=field("wrod"))),
        (
            "bolt 'sink' uses field 'wrod', which is not on stream 'default' of 'source'; its "
            "fields are word; did you mean 'word'?"
        ),
    ),
    (
        "a sink's field in a mapping",
        lambda: sink(QueueSink("q", headers={"tenant": field("tenant")})),
        "bolt 'sink' uses field 'tenant', which is not on stream 'default'",
    ),
    (
        "a sink's fields",
        lambda: sink(QueueSink("q", fields=["word", "n"])),
        "bolt 'sink' uses field 'n', which is not on",
    ),
    (
        "a sink's body",
        lambda: sink(QueueSink("q", body=field("body"))),
        "bolt 'sink' uses field 'body', which is not on",
    ),
    (
        "a field of a row",
        lambda: sink(DatabaseSink("sqlite://", "words", fields={"wordd": "w"})),
        "bolt 'sink' uses field 'wordd', which is not on .*; did you mean 'word'",
    ),
]


def sink(bolt: Any) -> TopologyBuilder:
    made = builder()
    made.set_bolt("sink", bolt).shuffle_grouping("source")
    return made


def test_a_setting_of_one_s_own_may_have_any_other_name() -> None:
    made = bolt(config={"weights": 1, "sizes": 2, "timeout": 3, "limit": 4})
    assert made.build().config_of("bolt").extra["weights"] == 1


def declared_subscription(stream: str) -> TopologyBuilder:
    made = builder()
    made.set_bolt("bolt", Words()).shuffle_grouping("source", stream=stream)
    return made


def chained_to(silent: type) -> TopologyBuilder:
    made = bolt(silent, "silent")
    made.set_bolt("bolt", Words()).shuffle_grouping("silent")
    return made


@pytest.mark.parametrize(
    ("make", "message"), [pytest.param(make, message, id=name) for name, make, message in WRONG]
)
def test_a_topology_that_cannot_run_is_refused_in_one_line(
    make: Callable[[], TopologyBuilder], message: str
) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        make().build()
    assert "\n" not in str(caught.value)


def spout_with(**methods: Any) -> Any:
    def next_tuple(self, collector): ...

    return type("Own", (Spout,), {"output_fields": "n long", "next_tuple": next_tuple, **methods})()


async def waits(self, *given): ...


def yields(self, *given):
    yield given


NO_ARGUMENT = "is called with \\(grace\\), and takes \\(\\)"


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"next_tuple": waits}, "next_tuple is async and would never run: write a plain method"),
        ({"next_tuple": yields}, "next_tuple is a generator and would never run"),
        ({"open": waits}, "open is async and would never run"),
        ({"ack": waits}, "ack is async and would never run"),
        ({"retry_later": waits}, "retry_later is async and would never run"),
        ({"close": lambda self: None}, f"close {NO_ARGUMENT}"),
        ({"open": lambda self, config: None}, r"is called with \(config, context\), and takes"),
        ({"fail": lambda self: None}, r"fail is called with \(msg_id\), and takes \(\)"),
        ({"fail": lambda self, a, b, c: None}, r"fail is called with \(msg_id, reason\)"),
    ],
)
def test_a_method_of_a_spout_that_cannot_be_called_is_refused(
    methods: dict[str, Any], said: str
) -> None:
    with pytest.raises(TopologyError, match=f"^spout 'spout': .*{said}"):
        TopologyBuilder("refused").set_spout("spout", spout_with(**methods))


def test_a_spout_whose_next_tuple_is_misspelt_is_refused() -> None:
    class Storms(Spout):
        output_fields = "n long"

        def nextTuple(self, collector):  # noqa: N802 - as Storm's
            raise NotImplementedError

    with pytest.raises(TopologyError, match="no method next_tuple; did you mean 'nextTuple'"):
        TopologyBuilder("refused").set_spout("spout", Storms())


def test_methods_of_a_spout_may_take_more_than_they_are_given() -> None:
    def anything(self, *args, **kwargs): ...

    builder = TopologyBuilder("taken")
    builder.set_spout("plain", spout_with(fail=lambda self, msg_id: None))
    builder.set_spout("reason", spout_with(fail=lambda self, msg_id, reason="": None))
    builder.set_spout("any", spout_with(ack=anything, fail=anything, close=anything))
    assert builder.build()


def test_task_ids_begin_with_the_spouts_at_1_and_go_on_with_the_bolts_in_order() -> None:
    made = TopologyBuilder("words")
    made.set_bolt("late", Words(), parallelism=2).shuffle_grouping("b")
    made.set_spout("a", Source(), parallelism=2)
    made.set_bolt("early", Words(), parallelism=3).shuffle_grouping("a")
    made.set_spout("b", Source())
    topology = made.build()
    ids = {
        component: list(topology.task_ids(component))
        for component in (*topology.spouts, *topology.bolts)
    }
    assert ids == {"a": [1, 2], "b": [3], "late": [4, 5], "early": [6, 7, 8]}
    assert topology.spout_tasks == 3
    assert topology.component_of(5) == "late"
    with pytest.raises(KeyError):
        topology.component_of(9)


def test_a_task_is_told_who_it_is_and_who_is_around_it() -> None:
    made = bolt(Naming, "naming", parallelism=3)
    made.set_bolt("bolt", Words()).direct_grouping("naming", stream="named")
    context = made.build().context_of(3)
    assert (context.topology, context.component, context.task_id, context.task_index) == (
        "words",
        "naming",
        3,
        1,
    )
    assert context.parallelism == 3
    assert context.sources == [("source", "default")]
    assert context.targets == {"named": ["bolt"], "plain": []}
    assert context.streams == {"named": ("word",), "plain": ("word",)}
    assert list(context.component_tasks("bolt")) == [5]
    assert list(context.component_tasks("naming")) == [2, 3, 4]
    with pytest.raises(
        KeyError, match="there is no component 'bold'; there are source, naming, bolt"
    ):
        context.component_tasks("bold")


def test_a_spout_task_is_told_the_same_and_what_its_worker_offers() -> None:
    made = TopologyBuilder("words")
    made.set_spout("first", Source())
    made.set_spout("source", Source("word string, n long"), parallelism=2)
    made.set_bolt("bolt", Words(), parallelism=2).shuffle_grouping("source").shuffle_grouping(
        "first"
    )
    called = []
    context = made.build().spout_context_of(
        3,
        wake=lambda: called.append("wake"),
        count=lambda name, count: called.append((name, count)),
    )
    assert (context.topology, context.component, context.task_id, context.task_index) == (
        "words",
        "source",
        3,
        1,
    )
    assert (context.parallelism, context.targets) == (2, {"default": ["bolt"]})
    assert (context.streams, list(context.component_tasks("bolt"))) == (
        {"default": ("word", "n")},
        [4, 5],
    )
    context.wake()
    context.count("seen", 2)
    assert called == ["wake", ("seen", 2)]


def test_every_grouping_has_its_method_and_they_chain() -> None:
    made = builder()
    for number in range(7):
        made.set_spout(f"s{number}", Source())
    declarer = made.set_bolt("bolt", Words())
    declarer.shuffle_grouping("source").fields_grouping("s0", "word").all_grouping(
        "s1"
    ).global_grouping("s2").none_grouping("s3").local_or_shuffle_grouping(
        "s4"
    ).partial_key_grouping("s5", "word").custom_grouping("s6", Chooser())
    names = [
        subscription.grouping.name for subscription in made.build().bolts["bolt"].subscriptions
    ]
    assert names == [
        "shuffle",
        "fields",
        "all",
        "global",
        "none",
        "local_or_shuffle",
        "partial_key",
        "custom",
    ]


def test_a_component_s_settings_lie_over_the_topology_s() -> None:
    made = builder(message_timeout_secs=5, extra={"colour": "red"})
    made.set_bolt("bolt", Words(), config={"tick_tuple_freq_secs": 2, "size": 3}).shuffle_grouping(
        "source"
    )
    topology = made.build()
    settings = topology.config_of("bolt").as_mapping()
    assert (settings["message_timeout_secs"], settings["tick_tuple_freq_secs"]) == (5, 2)
    assert (settings["colour"], settings["size"]) == ("red", 3)
    assert "size" not in topology.config_of("source").as_mapping()


def test_its_depth_is_the_bolts_in_a_row_and_a_cycle_makes_it_no_deeper() -> None:
    made = bolt(name="first")
    assert made.build().depth == 1
    made.set_bolt("beside", Words()).shuffle_grouping("source")
    made.set_bolt("third", Words()).shuffle_grouping("second")
    made.set_bolt("second", Words()).shuffle_grouping("first").shuffle_grouping("third")
    assert made.build().depth == 3


def test_a_topology_travels() -> None:
    topology = bolt(parallelism=2).build()
    arrived = pickle.loads(pickle.dumps(topology))
    assert arrived.task_ids("bolt") == topology.task_ids("bolt")
    assert arrived.context_of(2) == topology.context_of(2)


def test_importing_all_that_users_import_does_not_import_pyspark() -> None:
    code = "import sys; from tiercel import *; TopologyBuilder; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
