"""The note of a topology, from which commands know it."""

from types import MappingProxyType

from tiercel import BasicBolt, Config, TopologyBuilder
from tiercel.testing import FeederSpout
from tiercel.workers.control.registry import _note, _packed


def noted(config=MappingProxyType({}), **settings):
    builder = TopologyBuilder("t", Config(message_timeout_secs=30, **config))
    builder.set_spout("numbers", FeederSpout(fields="x long"))
    builder.set_bolt("bolt", BasicBolt(), config=settings).shuffle_grouping("numbers")
    return _note("t", _packed(builder.build()).encode())


def test_a_message_is_in_flight_for_its_timeout_at_most_unless_a_bolt_may_take_longer():
    assert noted().in_flight_secs == 30
    assert noted(execute_timeout_secs=10).in_flight_secs == 30
    assert noted(execute_timeout_secs=3600).in_flight_secs == 3630
    assert noted(execute_timeout_secs=3600).message_timeout_secs == 30


def test_it_says_whether_messages_time_out():
    assert noted().times_out
    assert noted(execute_timeout_secs=3600).times_out
    for limit_s in (10, 3600):
        note = noted({"enable_message_timeouts": False}, execute_timeout_secs=limit_s)
        assert not note.times_out
        assert note.message_timeout_secs == 30, "the ledger's"
        assert note.in_flight_secs == (30 if limit_s == 10 else 3630), "a kill waits for the call"
