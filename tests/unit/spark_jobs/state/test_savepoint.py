"""Savepoints are restored exactly, and a damaged file is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiercel.spark_jobs.errors import SavepointError
from tiercel.spark_jobs.state.encoding import encode_key, encode_value
from tiercel.spark_jobs.state.savepoint import (
    SavedBolt,
    SavedEntry,
    SavedMark,
    SavedStates,
    line_of,
    open_savepoint,
    write_savepoint,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTS = st.one_of(TEXTS, st.integers(), st.binary(max_size=8))
KEYS = st.one_of(PARTS, st.lists(PARTS, max_size=3).map(tuple))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.binary(max_size=8)),
    lambda some: st.one_of(
        st.lists(some, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(["$bytes", "$dict"])), some, max_size=3),
    ),
    max_leaves=6,
)
OURS = st.tuples(KEYS.map(encode_key), VALUES.map(encode_value))
STRANGERS = st.tuples(st.binary(max_size=12), st.binary(max_size=12))
NAMES = st.one_of(st.sampled_from(["count", "a b"]), TEXTS.filter(bool))


def written(path, entries, marks=(), shards=2):
    """Write a file with these (bolt, field, value) and (bolt, shard, bucket, field, mark)."""
    saved = [SavedEntry(bolt=bolt, field=field, value=value) for bolt, field, value in entries]
    saved += [
        SavedMark(bolt=bolt, shard=shard, bucket=bucket, field=field, mark=mark)
        for bolt, shard, bucket, field, mark in marks
    ]
    numbers = Counter((one.bolt, type(one)) for one in saved)
    bolts = tuple(
        SavedBolt(
            name=name,
            tasks=1,
            shards=shards,
            entries=numbers[name, SavedEntry],
            marks=numbers[name, SavedMark],
        )
        for name in sorted({one.bolt for one in saved} | {"count"})
    )
    header = SavedStates(version="1", saved="2026-01-01", topology="words", bolts=bolts)
    write_savepoint(path, header, saved)
    return header, saved


def read(path):
    with open_savepoint(path) as file:
        file.check()
        return file.header, list(file.saved())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states.jsonl"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    entries=st.lists(st.tuples(NAMES, st.one_of(OURS, STRANGERS)), max_size=8),
    marks=st.lists(
        st.tuples(
            NAMES,
            st.integers(0, 1),
            st.integers(0, 99),
            st.binary(min_size=11, max_size=11),
            st.binary(min_size=3),
        ),
        max_size=3,
    ),
)
def test_what_was_written_is_read_again_byte_by_byte(path, entries, marks):
    path.unlink(missing_ok=True)
    header, saved = written(path, [(name, *entry) for name, entry in entries], marks)
    assert read(path) == (header, saved)
    assert len(path.read_bytes().splitlines(keepends=True)) >= len(saved) + 2


@given(entry=OURS)
def test_an_entry_of_a_bolt_is_a_line_of_plain_json(entry):
    field, value = entry
    said = json.loads(line_of(SavedEntry(bolt="count", field=field, value=value)))
    assert said.keys() == {"bolt", "key", "value"}


def test_a_line_can_be_read_and_edited(path):
    written(path, [("count", b'"falcon"', b"7"), ("count", b'["a",1]', b'[1.5,{"x":null}]')])
    text = path.read_text()
    assert '{"bolt":"count","key":"falcon","value":7}\n' in text
    path.write_text(text.replace('"value":7', '"value": 8'))
    _, saved = read(path)
    assert saved[0].value == b"8"


def test_a_file_that_is_cut_off_anywhere_is_refused(path, tmp_path):
    written(
        path,
        [("count", b'"a"', b"1"), ("count", b'"b"', b"2")],
        [("count", 0, 1, b"k" * 11, b"made")],
    )
    raw = path.read_bytes()
    cut = tmp_path / "cut"
    for length in range(len(raw)):
        cut.write_bytes(raw[:length])
        with pytest.raises(SavepointError):
            read(cut)
    lines = raw.splitlines(keepends=True)
    for number in range(len(lines)):
        cut.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(SavepointError):
            read(cut)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"tiercel":"state"', '"tiercel":"other"', "was not written by tiercel state export"),
        ('{"tiercel"', '["tiercel"', "was not written by tiercel state export"),
        ('"format":1', '"format":2', "has format 2, and this version of tiercel reads 1"),
        ('"shards":2', '"shards":0', "the first line of .* is wrong: bolts 0 shards"),
        ('"topology":"words",', "", "the first line of .* is wrong: topology"),
        ('"bolt":"count"', '"bolt":"split"', "line 2: the first line has no bolt 'split'"),
        ('"key":"a"', '"key":null', "line 2: it is no entry of a state"),
        ('"key":"a"', '"key":1.5', "line 2: it is no entry of a state"),
        ('"value":1', '"value":{"$bytes":7}', "line 2: it is no entry of a state"),
        ('"value":1', '"more":1', "line 2: it is no entry of a state: it has other members"),
        ('"value":1', '"value":1}{', "line 2: it is no JSON object"),
        ('{"end":{"entries":1', '{"end":{"entries":2', "line 3: its numbers differ"),
        ('{"end":', '{"bolt":"count","key":"a","value":2}\n{"end":', "has 2 entries of count"),
        ('"marks":0}}\n', '"marks":0}}\n\n', "line 4: it comes after the last line"),
    ],
)
def test_a_file_that_was_damaged_is_refused_with_the_line(path, old, new, line):
    written(path, [("count", b'"a"', b"1")])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SavepointError, match=line):
        read(path)


@pytest.mark.parametrize(
    ("field", "mark"), [(b"short", b"made"), (b"k" * 12, b"made"), (b"k" * 11, b"m")]
)
def test_a_remembered_key_of_another_length_is_refused_with_the_line(path, field, mark):
    written(path, [], [("count", 0, 1, field, mark)])
    with pytest.raises(SavepointError, match=r"line 2: it is no entry .* key of another length"):
        read(path)


def test_a_file_without_bolts_is_refused(path):
    header = SavedStates(version="1", saved="2026-01-01", topology="words", bolts=())
    write_savepoint(path, header, [])
    with pytest.raises(SavepointError, match=r"names no bolt: there is no state to import"):
        read(path)


@pytest.mark.parametrize("raw", [b"", b"\n", b"\xff\xfe", b"[]\n", b"7\n", b'{"a": 1}\n'])
def test_any_other_file_is_refused(path, raw):
    path.write_bytes(raw)
    with pytest.raises(SavepointError, match="was not written by tiercel state export"):
        read(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for there in (tmp_path / "missing", tmp_path):
        with pytest.raises(SavepointError, match=f"cannot read {there}"):
            read(there)


def test_a_file_that_is_there_stays_as_it_is(path):
    path.write_text("of yesterday")
    with pytest.raises(SavepointError, match="exists already: name another file"):
        written(path, [("count", b"1", b"1")])
    assert path.read_text() == "of yesterday"


def test_only_this_user_may_read_it(path):
    written(path, [("count", b"1", b"1")])
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_state_that_changes_meanwhile_leaves_no_file(path):
    bolt = SavedBolt(name="count", tasks=1, shards=1, entries=2, marks=0)
    header = SavedStates(version="1", saved="now", topology="words", bolts=(bolt,))
    with pytest.raises(SavepointError, match="the state of count changed while it was read"):
        write_savepoint(path, header, [SavedEntry(bolt="count", field=b"1", value=b"1")])
    assert list(path.parent.iterdir()) == []


FULL = """
import resource, sys
from pathlib import Path
from tiercel.spark_jobs.errors import SavepointError
from tiercel.spark_jobs.state.savepoint import *

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
bolt = SavedBolt(name="count", tasks=1, shards=1, entries=9_999, marks=0)
header = SavedStates(version="1", saved="now", topology="words", bolts=(bolt,))
value = b'"' + b"x" * 99 + b'"'
saved = (SavedEntry(bolt="count", field=b"%d" % n, value=value) for n in range(9_999))
try:
    write_savepoint(Path(sys.argv[1]), header, saved)
except SavepointError as error:
    print(error)
"""


def test_a_disk_without_room_leaves_no_file(path):
    """A limit of the process makes the kernel refuse the write."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"cannot write {path}: File too large; nothing was left behind\n"
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("length", [246, 256])
def test_a_name_that_is_too_long_is_refused(tmp_path, length):
    with pytest.raises(SavepointError, match=r"cannot write .*: File name too long"):
        written(tmp_path / ("x" * length), [("count", b"1", b"1")])


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(SavepointError, match=r"cannot write .*: No such file or directory"):
        written(tmp_path / "no" / "states", [("count", b"1", b"1")])
