"""``tiercel state`` on a real Redis: the state of a stateful bolt, for people and scripts."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from tests.support.broker import unique
from tests.support.pump import Source
from tests.support.states import begin, commit_turn, state_of
from tiercel import Config, StatefulBolt, TopologyBuilder
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.errors import StateLayoutError
from tiercel.spark_jobs.state.encoding import encode_key
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.workers.cli.app import app
from tiercel.workers.control.registry import Registry, topology_named
from tiercel.workers.errors import UsageError

WORDS = {"falcon": 7, "kestrel": 12, ("first page", "ann"): "start", 7: 7.0, "7": [b"\xff", None]}


def announce(redis_url, name, shards):
    builder = TopologyBuilder(name, Config(ackers=shards))
    builder.set_spout("lines", Source())
    builder.set_bolt("count", StatefulBolt()).shuffle_grouping("lines")
    builder.set_bolt("other", StatefulBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())


@pytest.fixture(params=[1, 3])
def name(redis_url, request):
    """A topology that has run, in one shard or in several, and left words in its state."""
    name = unique("looked-at")
    announce(redis_url, name, request.param)
    spec = topology_named(redis_url, name).ledger_spec((redis_url,))
    with closing(RedisStateStore(spec, run_number=1)) as store:
        turn = begin(store, "count", 0, 1)
        state = state_of(turn)
        for key, value in WORDS.items():
            state.put(key, value)
        commit_turn(turn, state._bulk(), "digest")
    return name


@pytest.fixture
def tiercel(redis_url):
    def run(*arguments):
        result = CliRunner().invoke(
            app,
            ["state", *arguments, "--redis", redis_url],
            env={"COLUMNS": "80"},
            catch_exceptions=False,
        )
        return result.exit_code, result.stdout, result.stderr

    return run


def entries(said):
    return [json.loads(line) for line in said.splitlines()]


def test_without_keys_it_shows_all_entries_with_their_types(tiercel, name):
    code, said, _ = tiercel(name, "count", "--json")
    assert code == 0
    found = {json.dumps(each["key"]): (each["type"], each["value"]) for each in entries(said)}
    assert found == {
        '"falcon"': ("int", 7),
        '"kestrel"': ("int", 12),
        '["first page", "ann"]': ("str", "start"),
        "7": ("float", 7.0),
        '"7"': ("list", [{"$bytes": "/w=="}, None]),
    }
    code, said, _ = tiercel(name, "count")
    assert code == 0
    for text in ('"falcon"', '["first page","ann"]', "float", '[{"$bytes":"/w=="},null]'):
        assert text in said


def test_a_key_is_named_as_it_is_shown_or_as_a_text(tiercel, name):
    code, said, _ = tiercel(name, "count", "falcon", '["first page", "ann"]', "--json")
    assert (code, [each["value"] for each in entries(said)]) == (0, [7, "start"])
    assert "start" in tiercel(name, "count", '["first page","ann"]')[1]
    found = entries(tiercel(name, "count", "7", "--json")[1])
    assert [(each["key"], each["type"]) for each in found] == [(7, "float"), ("7", "list")]
    assert [each["key"] for each in entries(tiercel(name, "count", '"7"', "--json")[1])] == ["7"]


def test_a_key_without_an_entry_ends_it_with_1_and_the_others_are_shown(tiercel, name):
    code, said, error = tiercel(name, "count", "falcon", "eagle", "--json")
    assert (code, len(entries(said))) == (1, 1)
    assert error.splitlines()[-1] == f"tiercel: the state of count in {name} has no eagle"


def test_it_stops_at_the_limit_and_says_how_many_there_are(tiercel, name, redis_url):
    spec = topology_named(redis_url, name).ledger_spec((redis_url,))
    with closing(RedisStateStore(spec, run_number=1)) as store:
        many = {encode_key(f"word {number}"): b"1" for number in range(3_000)}
        commit_turn(begin(store, "count", 0, 2), Writes(puts=many), "digest")
    code, said, error = tiercel(name, "count", "--json", "--limit", "30")
    keys = [json.dumps(each["key"]) for each in entries(said)]
    assert (code, len(keys), len(set(keys))) == (0, 30, 30)
    assert "30 of 3,005 entries" in error
    assert len(entries(tiercel(name, "count", "--json", "--limit", "9999")[1])) == 3_005


def test_a_long_value_is_cut_unless_its_key_is_named(tiercel, name, redis_url):
    spec = topology_named(redis_url, name).ledger_spec((redis_url,))
    with closing(RedisStateStore(spec, run_number=1)) as store:
        turn = begin(store, "other", 0, 1)
        commit_turn(turn, Writes(puts={b'"long"': b'"%s"' % (b"x" * 998)}), "digest")
    assert "and 800 characters more" in tiercel(name, "other")[1]
    assert tiercel(name, "other", "long")[1].count("x") == 998


def test_an_empty_state_is_said_and_an_unknown_bolt_is_refused(tiercel, name):
    code, said, error = tiercel(name, "other")
    assert (code, said) == (0, "")
    assert f"the state of other in {name} is empty: it has no entries yet, or it is not" in error
    with pytest.raises(UsageError, match=r"no bolt 'cuont'.*; did you mean 'count'\?"):
        tiercel(name, "cuont")
    with pytest.raises(UsageError, match="its bolts are count, other"):
        tiercel(name, "xyz")
    with pytest.raises(UsageError, match="there is no topology"):
        tiercel(unique(), "count")


def test_another_number_of_shards_than_it_was_written_with_is_refused(tiercel, name, redis_url):
    announce(redis_url, name, 5)
    with pytest.raises(StateLayoutError, match=r"written with ackers=\d, now it is 5"):
        tiercel(name, "count")


def test_what_a_stranger_wrote_is_shown_harmlessly(tiercel, redis_url):
    name = unique("strange")
    announce(redis_url, name, 1)
    with closing(connect(redis_url)) as client:
        client.hset(f"tiercel:{{{name}:0}}:state:count", b"\xff\x1b[31m", b"\x1b]0;OWNED\x07")
    code, said, _ = tiercel(name, "count")
    assert code == 0
    assert "unreadable" in said
    assert "\x1b]" not in said
    code, said, _ = tiercel(name, "count", "--json")
    assert (code, entries(said)[0]["type"]) == (0, "unreadable")
    assert "\x1b" not in said


def test_to_look_ends_no_turn(tiercel, name, redis_url):
    """A running task goes on writing, because reading is neither an attempt nor a run."""
    spec = topology_named(redis_url, name).ledger_spec((redis_url,))
    with closing(RedisStateStore(spec, run_number=1)) as store:
        turn = begin(store, "count", 0, 2)
        assert tiercel(name, "count", "falcon")[0] == 0
        commit_turn(turn, Writes(puts={b'"falcon"': b"8"}), "digest")
    assert entries(tiercel(name, "count", "falcon", "--json")[1])[0]["value"] == 8
