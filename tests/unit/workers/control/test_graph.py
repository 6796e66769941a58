"""Published graph of a topology, so that a monitor needs none of its code."""

import json
from dataclasses import asdict, replace
from typing import ClassVar

from tests.support.pump import Source
from tiercel import BasicBolt, Bolt, Config, QueueSink, QueueSpout, TopologyBuilder, field
from tiercel.workers.control.registry import Component, Edge, graph_of, unpack_graph


class Split(BasicBolt):
    output_streams: ClassVar = {"default": "word string", "odd ones": "word string"}


def topology():
    builder = TopologyBuilder("t", Config(ackers=3))
    builder.set_spout("lines", QueueSpout("a queue"), parallelism=2)
    builder.set_spout("more", Source())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines").all_grouping("more")
    count = builder.set_bolt("count", Bolt(), 3).fields_grouping("split", "word")
    count.global_grouping("split", stream="odd ones")
    return builder.build()


def test_it_has_the_components_with_their_tasks_and_queues_and_who_subscribes_to_what():
    graph = graph_of(topology())
    assert graph.spouts == (
        Component(name="lines", tasks=(1, 2), queue="a queue"),
        Component(name="more", tasks=(3,)),
    )
    assert graph.bolts == (
        Component(name="split", tasks=(4, 5)),
        Component(name="count", tasks=(6, 7, 8)),
    )
    assert graph.edges == (
        Edge(source="lines", stream="default", target="split", grouping="shuffle"),
        Edge(source="more", stream="default", target="split", grouping="all"),
        Edge(source="split", stream="default", target="count", grouping="fields"),
        Edge(source="split", stream="odd ones", target="count", grouping="global"),
    )
    assert (graph.shards, graph.queues) == (3, ["a queue"])


def test_it_has_the_queues_that_sinks_always_publish_to():
    builder = TopologyBuilder("t")
    builder.set_spout("lines", QueueSpout("in"))
    sinks = {
        "one": QueueSink("out"),
        "same": QueueSink("out"),
        "back": QueueSink("in"),
        "chosen": QueueSink(field("body")),
        "led": QueueSink(exchange="events", routing_key="key"),
    }
    for name, sink in sinks.items():
        builder.set_bolt(name, sink).shuffle_grouping("lines")
    graph = graph_of(builder.build())
    assert {bolt.name: bolt.queue for bolt in graph.bolts} == {
        "one": "out",
        "same": "out",
        "back": "in",
        "chosen": None,
        "led": None,
    }
    assert (graph.queues, graph.sinks) == (["in"], ["out"])
    assert unpack_graph(json.loads(json.dumps(asdict(graph)))) == graph


def test_it_travels_as_json():
    graph = graph_of(topology())
    assert unpack_graph(json.loads(json.dumps(asdict(graph)))) == graph


def test_bolts_may_be_on_a_cycle():
    graph = graph_of(topology())
    back = Edge(source="count", stream="default", target="split", grouping="shuffle")
    again = Edge(source="count", stream="default", target="count", grouping="fields")
    looped = replace(graph, edges=(*graph.edges, back, again))
    assert unpack_graph(json.loads(json.dumps(asdict(looped)))) == looped
