"""Bindings as users write them, and how an exchange of another type would read them."""

from __future__ import annotations

import pytest

from tiercel.queues.broker.declare import Binding


@pytest.mark.parametrize(
    ("given", "binding"),
    [
        (("e", "order.*"), Binding(exchange="e", routing_key="order.*", type="topic")),
        (["e", "order"], Binding(exchange="e", routing_key="order", type="topic")),
        (("e", "order", "direct"), Binding(exchange="e", routing_key="order", type="direct")),
        (("e",), Binding(exchange="e", type="fanout")),
        (("e", ""), Binding(exchange="e", type="fanout")),
        (("e", "", "topic"), Binding(exchange="e", type="topic")),
        (("e", {"a": "b"}), Binding(exchange="e", headers={"a": "b"}, type="headers")),
        (("e", {"a": 1}, "x-own"), Binding(exchange="e", headers={"a": 1}, type="x-own")),
    ],
)
def test_a_binding_says_exchange_and_key_or_headers_and_type(given, binding):
    assert Binding.of(given) == binding


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("events", r"'events' is no binding: write \(\"exchange\", \"routing.key\"\)"),
        ((), "is no binding"),
        (("e", "k", "direct", "more"), "is no binding"),
        (("e", None), "is no binding"),
        ((5, "k"), "is no binding"),
        (("e", "k", 5), "is no binding"),
        (None, "None is no binding"),
        (("e", {"weight": 1.5}), "whole numbers, true or false: not 'weight' = 1.5"),
        (("e", {"weight": 1 << 70}), "not 'weight' = 1180591620717411303424"),
        (("e", {5: "x"}), "not 5 = 'x'"),
        (("", "k"), "through the default exchange each queue gets"),
        (("e", "k" * 256), "names of at most 255 bytes"),
        (("e\n", "k"), "a binding names an exchange, without line breaks"),
    ],
)
def test_a_binding_that_is_none_is_one_clear_line(given, line):
    with pytest.raises(ValueError, match=line):
        Binding.of(given)


@pytest.mark.parametrize(
    ("given", "type_", "said"),
    [
        (("e", "order.*"), "topic", ""),
        (("e", "order"), "direct", ""),
        (("e", "order.*"), "direct", "knows no patterns"),
        (("e", "#"), "direct", "knows no patterns"),
        (("e", "order"), "fanout", ""),
        (("e", "order"), "headers", "ignores routing keys, and sends all"),
        (("e", {"a": "b"}), "headers", ""),
        (("e", {"a": "b"}), "topic", "a topic exchange ignores headers"),
    ],
)
def test_an_exchange_of_another_type_is_spoken_of(given, type_, said):
    found = Binding.of(given).misfit(type_)
    assert said in found
    assert bool(said) == bool(found)
