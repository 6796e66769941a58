"""Keys that a word on the command line may mean, and entries as they are printed."""

import json

import pytest

from tiercel.spark_jobs.state.encoding import (
    UNREADABLE,
    encode_key,
    encode_value,
    entry_of,
    fields_meant,
)


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("falcon", ["falcon"]),
        ('"falcon"', ["falcon"]),
        ("7", [7, "7"]),
        ("-7", [-7, "-7"]),
        ('"7"', ["7"]),
        ("1.5", ["1.5"]),
        ("true", ["true"]),
        ("null", ["null"]),
        ("", [""]),
        ('"cut off', ['"cut off']),
        ('[ "first page",  "ann"]', [("first page", "ann")]),
        ('["a", 1, {"$bytes": "/w=="}]', [("a", 1, b"\xff")]),
        ('{"$bytes": "/w=="}', [b"\xff"]),
        ('{"$bytes": 7}', ['{"$bytes": 7}']),
        ('{"bytes": "/w=="}', ['{"bytes": "/w=="}']),
        ("[1.5]", ["[1.5]"]),
        ("[" * 100_000, ["[" * 100_000]),
        ("9" * 5_000, ["9" * 5_000]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_word_means_a_key_in_the_states_notation_or_else_a_text(word, keys):
    assert fields_meant(word) == [encode_key(key) for key in keys]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "None"),
        (True, "bool"),
        (7, "int"),
        (1.0, "float"),
        ("7", "str"),
        (b"\xff", "bytes"),
        ([1], "list"),
        ({"$bytes": 1}, "dict"),
    ],
)
def test_an_entry_names_the_type_that_a_bolt_will_get(value, kind):
    entry = entry_of(encode_key(("k", 1)), encode_value(value))
    assert (entry.key, entry.type) == ('["k",1]', kind)
    assert json.dumps(entry.as_json()["key"]) == '["k", 1]'
    assert entry.value == encode_value(value).decode()


@pytest.mark.parametrize("field", [b'"k"', b"\xff"])
@pytest.mark.parametrize("raw", [b"\xff\x1b[2J", b"[" * 100_000, b"no json"])
def test_what_no_bolt_has_written_is_shown_as_text(field, raw):
    entry = entry_of(field, raw)
    assert entry.type == UNREADABLE
    assert entry.as_json()["value"] == entry.value
    assert json.dumps(entry.as_json())
