"""``tiercel state export`` and ``import`` on a real Redis: all of a state moves, or none."""

from __future__ import annotations

import json
import re
import shlex
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.broker import unique
from tests.support.pump import Source
from tests.support.states import begin, break_off, commit_turn, state_of
from tiercel import Config, StatefulBolt, TopologyBuilder
from tiercel.acker.errors import AckerError
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.errors import SavepointError, StaleTurnError, StateLayoutError
from tiercel.spark_jobs.state import redis_savepoint, redis_shard
from tiercel.spark_jobs.state.encoding import decode_key, decode_value, encode_key
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import Writes
from tiercel.workers.cli import state
from tiercel.workers.cli.app import app
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.control.registry import Registry, topology_named
from tiercel.workers.errors import UsageError

UPGRADES = (Path(__file__).parents[3] / "docs" / "upgrades.md").read_text()
WORDS = {f"word {number}": number for number in range(40)} | {
    ("first page", b"\xff"): {"$bytes": [1.5, None, True]},
    7: -(2**63),
    "7": "é\n\u2028",
}
MARKS = {bytes([number] * 16): b"%d" % number * 20 for number in range(9)}


def announce(redis_url, name, shards, bolts=("count", "other")):
    builder = TopologyBuilder(name, Config(ackers=shards))
    builder.set_spout("lines", Source())
    for bolt in bolts:
        builder.set_bolt(bolt, StatefulBolt()).shuffle_grouping("lines")
    with closing(Registry(redis_url)) as registry:
        registry.announce(builder.build())


@contextmanager
def store_of(redis_url, name, run_number=None, shards=None):
    """Open the states of a topology, by default in a new run."""
    run_number = int(time.time() * 1_000_000) if run_number is None else run_number
    spec = topology_named(redis_url, name).ledger_spec((redis_url,))
    spec = replace(spec, shards=shards or spec.shards)
    with closing(RedisStateStore(spec, run_number)) as store:
        yield store


def put(redis_url, name, bolt, words, marks=None, step=1):
    with store_of(redis_url, name) as store:
        turn = begin(store, bolt, 0, step)
        state = state_of(turn)
        for key, value in words.items():
            state.put(key, value)
        commit_turn(turn, replace(state._bulk(), marks=marks or {}), "digest")


def words_of(redis_url, name, bolt="count", shards=None):
    with store_of(redis_url, name, 0, shards) as store:
        return {decode_key(field): decode_value(raw) for field, raw in store.entries(bolt)}


@pytest.fixture(params=[1, 3])
def name(redis_url, request):
    """A topology that has run, in one shard or in several, and left two states."""
    name = unique("moved")
    announce(redis_url, name, request.param)
    put(redis_url, name, "count", WORDS)
    put(redis_url, name, "other", {"a": 1})
    return name


@pytest.fixture
def file(tmp_path):
    return tmp_path / "before.jsonl"


@pytest.fixture
def tiercel(redis_url):
    def run(*arguments, answer=None):
        result = CliRunner().invoke(
            app,
            [*map(str, arguments), "--redis", redis_url],
            env={"COLUMNS": "200"},
            input=answer,
            catch_exceptions=False,
        )
        return result.exit_code, result.output

    return run


def test_moves_that_take_a_while_say_first_what_they_do(
    redis_url, name, tiercel, file, monkeypatch
):
    assert "exporting" not in tiercel("state", "export", name, "other", file)[1]
    file.unlink()
    monkeypatch.setattr(state, "_MANY", 10)
    assert tiercel("state", "export", name, file)[1].startswith("exporting 43 entries of count\n")
    said = tiercel("state", "import", name, file, answer="n")[1]
    assert said.startswith(f"checking 43 entries of count in {file}\n")
    said = tiercel("state", "import", name, file, "--yes")[1]
    assert "importing 43 entries of count\n" in said


def keys_of(redis_url, name):
    with closing(connect(redis_url)) as client:
        return {
            key
            for end in ("}:*", ":*}:*")
            for key in client.scan_iter(f"tiercel:{{{name}{end}", count=10_000)
        }


def test_all_states_go_to_a_file_and_come_back_exactly(tiercel, name, redis_url, file):
    code, said = tiercel("state", "export", name, file)
    assert code == 0
    assert "exported 43 entries of count" in said
    assert "exported 1 entry of other" in said
    put(redis_url, name, "count", {"word 1": "spoilt", "more": 1}, step=2)
    code, said = tiercel("state", "import", name, file, answer="y\n")
    assert code == 0
    assert f"Replace 44 entries of count, 1 entry of other in {name} for good?" in said
    assert "imported 43 entries of count" in said
    assert words_of(redis_url, name) == WORDS
    assert words_of(redis_url, name, "other") == {"a": 1}
    again = file.with_name("again")
    assert tiercel("state", "export", name, again)[0] == 0
    lines = [sorted(each.read_text().splitlines()[1:]) for each in (file, again)]
    assert lines[0] == lines[1]


def test_one_bolt_alone(tiercel, name, redis_url, file):
    assert tiercel("state", "export", name, "other", file)[0] == 0
    assert len(file.read_text().splitlines()) == 3
    put(redis_url, name, "other", {"b": 2}, step=2)
    assert tiercel("state", "import", name, "other", file, "--yes")[0] == 0
    assert words_of(redis_url, name, "other") == {"a": 1}
    assert words_of(redis_url, name) == WORDS


def test_no_is_no(tiercel, name, redis_url, file):
    assert tiercel("state", "export", name, file)[0] == 0
    put(redis_url, name, "other", {"b": 2}, step=2)
    assert tiercel("state", "import", name, file, answer="n\n")[0] == 1
    assert words_of(redis_url, name, "other") == {"a": 1, "b": 2}


def test_the_next_run_goes_on_with_any_number_of_tasks(tiercel, name, redis_url, file):
    tiercel("state", "export", name, file)
    tiercel("state", "import", name, file, "--yes")
    with store_of(redis_url, name) as store:
        store.begin_run("count")
        found = []
        for task in range(5):
            turn = begin(store, "count", task, 1)
            state = state_of(turn, task, 5)
            found += dict(state.iterate())
            assert state.increment("word 7") == 7 + task + 1
            commit_turn(turn, state._bulk(), "digest")
        assert sorted(map(repr, found)) == sorted(map(repr, WORDS)), "each key comes at one task"


def test_a_file_of_other_ackers_fits_the_new_number(tiercel, name, redis_url, file):
    tiercel("state", "export", name, file)
    before = keys_of(redis_url, name)
    announce(redis_url, name, 2)
    assert tiercel("state", "import", name, file, "--yes")[0] == 0
    assert words_of(redis_url, name) == WORDS
    with store_of(redis_url, name, shards=2) as store:
        store.begin_run("count")
        assert state_of(begin(store, "count", 0, 1)).get("word 7") == 7
    tiercel("state", "import", name, file, "--yes", "--ackers", "5")
    assert words_of(redis_url, name, shards=5) == WORDS
    assert words_of(redis_url, name, shards=5).keys() == WORDS.keys()
    with store_of(redis_url, name) as store, pytest.raises(StateLayoutError):
        begin(store, "count", 0, 1)
    left = {key for key in keys_of(redis_url, name) - before if b"state-import" in key}
    assert left == set()


def test_a_renamed_bolt_gets_its_state(tiercel, name, redis_url, file):
    tiercel("state", "export", name, file)
    code, _ = tiercel("state", "import", name, file, "--rename", "count=tally", "--yes")
    assert code == 0
    assert words_of(redis_url, name, "tally") == WORDS
    assert tiercel("state", name, "tally", "word 7", "--json")[0] == 0
    with pytest.raises(UsageError, match=r"the file has no state of 'cuont'.*; did you mean"):
        tiercel("state", "import", name, file, "--rename", "cuont=tally")
    with pytest.raises(UsageError, match="would give two states of the file to one bolt"):
        tiercel("state", "import", name, file, "--rename", "count=other")
    with pytest.raises(UsageError, match="write OLD=NEW"):
        tiercel("state", "import", name, file, "--rename", "count")


def test_another_topology_needs_a_word(tiercel, name, redis_url, file):
    tiercel("state", "export", name, file)
    new = unique("new")
    announce(redis_url, new, 2, ["count", "rest"])
    with pytest.raises(UsageError, match=f"is of '{name}', not of '{new}': --from {name}"):
        tiercel("state", "import", new, file)
    with pytest.raises(UsageError, match="has no bolt 'other'; its bolts are count, rest"):
        tiercel("state", "import", new, file, "--from", name)
    renamed = ("--from", name, "--rename", "other=rest")
    assert tiercel("state", "import", new, file, *renamed)[0] == 0, "nothing to ask"
    assert words_of(redis_url, new) == WORDS
    assert words_of(redis_url, new, "rest") == {"a": 1}


def test_a_redis_that_has_lost_everything_gets_the_states_back(tiercel, name, redis_url, file):
    tiercel("state", "export", name, file)
    shards = json.loads(file.read_text().splitlines()[0])["bolts"][0]["shards"]
    assert tiercel("forget", name, "--yes")[0] == 0
    assert tiercel("state", "import", name, file)[0] == 0
    announce(redis_url, name, shards)
    assert words_of(redis_url, name) == WORDS


@pytest.mark.parametrize("command", [("export",), ("import",)], ids=" ".join)
def test_while_a_driver_runs_both_are_refused(tiercel, name, redis_url, file, command):
    if command == ("import",):
        tiercel("state", "export", name, file)
    with closing(RedisPresences(redis_url, name)) as presences:
        Lease(presences).take(Holder(driver="here"))
        with pytest.raises(UsageError, match=f"{name} runs: tiercel kill {name} first"):
            tiercel("state", *command, name, file)
        Lease(presences).leave("here")
    assert words_of(redis_url, name) == WORDS
    assert file.exists() is (command == ("import",))


def test_a_driver_that_starts_meanwhile_waits(tiercel, name, redis_url, file, monkeypatch):
    tiercel("state", "export", name, file)
    seen = []
    replacing = redis_savepoint.Import.replace

    def meanwhile(self):
        with closing(RedisPresences(redis_url, name)) as presences:
            lease = Lease(presences)
            seen.append(lease.take(Holder(driver="late")))
            seen.append(lease.holder().trouble)
        replacing(self)

    monkeypatch.setattr(redis_savepoint.Import, "replace", meanwhile)
    tiercel("state", "import", name, file, "--yes")
    assert seen == [False, "its states are being imported"]
    with closing(RedisPresences(redis_url, name)) as presences:
        assert Lease(presences).take(Holder(driver="late")), "the seat is free again"
        Lease(presences).leave("late")


def test_processes_of_an_earlier_run_cannot_write_any_more(tiercel, name, redis_url, file):
    with store_of(redis_url, name) as store:
        old = begin(store, "count", 0, 2)
        tiercel("state", "export", name, file)
        with pytest.raises(StaleTurnError):
            commit_turn(old, Writes(puts={b'"word 7"': b"0"}), "digest")
        tiercel("state", "import", name, file, "--yes")
        with pytest.raises(StaleTurnError):
            begin(store, "count", 0, 3)
    assert words_of(redis_url, name) == WORDS


def test_a_commit_that_was_broken_off_is_in_no_file(tiercel, name, redis_url, file, monkeypatch):
    monkeypatch.setattr(redis_shard, "SLICE", 10)
    with store_of(redis_url, name) as store:
        turn = begin(store, "count", 0, 2)
        half = Writes(puts={encode_key(f"word {number}"): b'"half"' for number in range(40)})
        break_off(turn, half, 3)
    assert words_of(redis_url, name) != WORDS
    tiercel("state", "export", name, "count", file)
    tiercel("state", "import", name, file, "--yes")
    assert words_of(redis_url, name) == WORDS


def test_remembered_keys_go_along_where_they_can(tiercel, name, redis_url, file):
    put(redis_url, name, "count", {"b": 1}, MARKS, step=2)
    with store_of(redis_url, name) as store:
        store.age("count", 3_600)
    code, said = tiercel("state", "export", name, file)
    assert "exported 44 entries and 9 remembered keys of count" in said
    with closing(connect(redis_url)) as client:
        for key in keys_of(redis_url, name):
            client.delete(key)
    code, said = tiercel("state", "import", name, file)
    assert code == 0
    assert "imported 44 entries and 9 remembered keys of count" in said
    with store_of(redis_url, name) as store:
        store.begin_run("count")
        assert begin(store, "count", 0, 1).recall(list(MARKS), 1) == MARKS
        assert store.marks(["count"]) == {"count": 9}
        store.age("count", 3_600)
        assert store.marks(["count"]) == {"count": 9}


def test_remembered_keys_that_cannot_move_are_refused_or_left_out(tiercel, name, redis_url, file):
    put(redis_url, name, "count", {"b": 1}, MARKS, step=2)
    tiercel("state", "export", name, file)
    with pytest.raises(UsageError, match=r"9 remembered keys of count cannot be imported.*names"):
        tiercel("state", "import", name, file, "--rename", "count=tally", "--yes")
    with pytest.raises(UsageError, match=r"they lie in \d ackers?, and there are 7 now"):
        tiercel("state", "import", name, file, "--ackers", "7", "--yes")
    code, said = tiercel(
        "state", "import", name, file, "--rename", "count=tally", "--without-keys", "--yes"
    )
    assert code == 0
    assert "imported 44 entries of tally" in said
    with store_of(redis_url, name) as store:
        assert store.marks(["tally", "count"]) == {"count": 9}
    code, said = tiercel("state", "import", name, file, "--without-keys", "--yes")
    with store_of(redis_url, name) as store:
        store.begin_run("count")
        assert begin(store, "count", 0, 1).recall(list(MARKS), 1) == {}, "they are replaced"


@pytest.mark.parametrize("length", [1, 200, -1, -20])
def test_of_half_a_file_nothing_is_imported(tiercel, name, redis_url, file, length):
    tiercel("state", "export", name, file)
    put(redis_url, name, "count", {"b": 1}, step=2)
    file.write_bytes(file.read_bytes()[:length])
    before = keys_of(redis_url, name)
    with pytest.raises(SavepointError):
        tiercel("state", "import", name, file, "--yes")
    assert words_of(redis_url, name) == WORDS | {"b": 1}
    assert keys_of(redis_url, name) == before


def test_another_bolt_s_file_is_refused(tiercel, name, redis_url, file):
    tiercel("state", "export", name, "other", file)
    with pytest.raises(UsageError, match="no state of 'count', but of other; --rename OLD=count"):
        tiercel("state", "import", name, "count", file)
    assert words_of(redis_url, name) == WORDS


def test_two_lines_of_one_key_are_refused(tiercel, name, redis_url, file):
    tiercel("state", "export", name, "other", file)
    text = file.read_text().replace('"entries":1', '"entries":2')
    line = next(each for each in text.splitlines(keepends=True) if '"key"' in each)
    file.write_text(text.replace(line, line + line))
    with pytest.raises(SavepointError, match="two lines of other have the same key"):
        tiercel("state", "import", name, file, "--yes")
    assert words_of(redis_url, name, "other") == {"a": 1}
    assert not [key for key in keys_of(redis_url, name) if b"state-import" in key]


def test_a_redis_that_fails_amid_an_import_keeps_the_states(
    tiercel, name, redis_url, file, monkeypatch
):
    tiercel("state", "export", name, file)
    put(redis_url, name, "count", {"b": 1}, step=2)
    monkeypatch.setattr(redis_savepoint, "_PAIRS_AT_ONCE", 10)
    sent = []
    send = redis_savepoint.Import._send

    def fail(self):
        sent.append(1)
        if len(sent) == 3:
            raise AckerError("the server is gone")
        send(self)

    monkeypatch.setattr(redis_savepoint.Import, "_send", fail)
    with pytest.raises(AckerError, match="the server is gone"):
        tiercel("state", "import", name, file, "--yes")
    assert words_of(redis_url, name) == WORDS | {"b": 1}
    assert not [key for key in keys_of(redis_url, name) if b"state-import" in key]


def test_a_repeated_call_deletes_nothing(tiercel, name, redis_url, file, monkeypatch):
    """redis-py repeats a call whose reply was lost."""
    replacing = redis_savepoint.Import.replace

    def twice(self):
        replacing(self)
        replacing(self)

    tiercel("state", "export", name, file)
    monkeypatch.setattr(redis_savepoint.Import, "replace", twice)
    tiercel("state", "import", name, file, "--yes")
    assert words_of(redis_url, name) == WORDS


def test_what_cannot_be_exported_is_said(tiercel, name, redis_url, file):
    with pytest.raises(UsageError, match=r"no state of 'cuont' in .*did you mean 'count'\?"):
        tiercel("state", "export", name, "cuont", file)
    with pytest.raises(UsageError, match="name one bolt and a file"):
        tiercel("state", "export", name, "count", "other", file)
    empty = unique("empty")
    announce(redis_url, empty, 1)
    with pytest.raises(UsageError, match=f"no bolt of {empty} has a state"):
        tiercel("state", "export", empty, file)
    assert not file.exists()


def test_what_a_stranger_wrote_moves_too(tiercel, redis_url, file):
    name = unique("strange")
    announce(redis_url, name, 1)
    put(redis_url, name, "count", {"a": 1})
    key = f"tiercel:{{{name}:0}}:state:count"
    with closing(connect(redis_url)) as client:
        client.hset(key, b"\xff\x1b[31m", b"\x1b]0;OWNED\x07")
        tiercel("state", "export", name, file)
        client.delete(key)
        tiercel("state", "import", name, file)
        assert client.hgetall(key) == {b'"a"': b"1", b"\xff\x1b[31m": b"\x1b]0;OWNED\x07"}


def test_a_topology_named_like_a_command_can_be_looked_at(tiercel, redis_url):
    announce(redis_url, "export", 1)
    put(redis_url, "export", "count", {"a": 1})
    assert '"a"' in tiercel("state", "show", "export", "count")[1]
    assert tiercel("forget", "export", "--yes")[0] == 0


def test_many_large_entries_move_within_bounds(tiercel, redis_url, file):
    name = unique("large")
    announce(redis_url, name, 2)
    many = {encode_key(f"word {number}"): b'"%s"' % (b"x" * 2_000) for number in range(5_000)}
    with store_of(redis_url, name) as store:
        commit_turn(begin(store, "count", 0, 1), Writes(puts=many), "digest")
    tiercel("state", "export", name, file)
    tiercel("state", "import", name, file, "--rename", "count=tally")
    with store_of(redis_url, name) as store:
        assert dict(store.entries("tally")) == many


def test_the_recipe_of_the_page_moves_a_renamed_bolt_with_its_counts(
    tiercel, name, redis_url, tmp_path, monkeypatch
):
    """Runs the commands of docs/upgrades.md unchanged, for this topology."""
    monkeypatch.chdir(tmp_path)
    [recipe] = re.findall(r"## A savepoint\n.*?\n\n((?:    [^\n]*\n)+)", UPGRADES, re.DOTALL)
    commands = [line.split(" # ")[0].split() for line in recipe.splitlines()]
    commands = [shlex.split(" ".join(words)) for words in commands if words[:1] == ["tiercel"]]
    assert [words[1] for words in commands] == ["kill", "state", "state", "state"]
    before = words_of(redis_url, name)
    for words in commands:
        code, said = tiercel(
            *[name if word == "word-count" else word for word in words[1:]], answer="y\n"
        )
        assert code in (0, 1) if "falcon" in words else code == 0, said
    announce(redis_url, name, topology_named(redis_url, name).graph.shards, ["tally", "other"])
    assert words_of(redis_url, name, "tally") == before


def test_on_a_cluster_everything_moves_and_nothing_is_left(clustered_redis, file):
    url = clustered_redis.url

    def tiercel(*arguments):
        result = CliRunner().invoke(
            app, [*map(str, arguments), "--redis", url], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output

    name, other = unique("on-a-cluster"), unique("other")
    for each in (name, other):
        announce(url, each, 3)
        put(url, each, "count", WORDS)
    tiercel("state", "export", name, file)
    tiercel("forget", name, "--yes")
    with pytest.raises(UsageError, match="there is no topology"):
        topology_named(url, name)
    announce(url, name, 3)
    assert words_of(url, name) == {}, "its keys on all members are gone"
    tiercel("state", "import", name, file, "--rename", "count=tally")
    assert words_of(url, name, "tally") == WORDS
    assert words_of(url, other) == WORDS
