"""Any body is parsed or refused in linear time and bounded memory, and never kills the process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.body_cost import HARD, LARGE, filled
from tiercel.queues.errors import BadBodyError
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.values.json_values import MAX_VALUES, read_json

ROOT = Path(__file__).parents[4]
# The limit that ``read_json`` states; Arrow's copy of the values, at most of the body's size, is
# extra.
STATED = 384 * 2**20
# Seconds of CPU for 16 MiB: 0.1 to 2 on a quiet machine; minutes to hours before the fix.
LINEAR_S = 20


def costs(*names):
    """Return the costs of these bodies, measured in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.body_cost", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-500:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_bodies_take_no_more_memory_than_is_stated(name):
    (cost,) = costs(name)
    assert cost["peak"] < STATED + MAX_BODY_BYTES, cost
    assert cost["seconds"] < LINEAR_S, cost


def test_no_body_is_slow_or_ends_the_process():
    for cost in costs(*HARD):
        assert cost["seconds"] < LINEAR_S, cost
        assert cost["peak"] < STATED, cost
        assert len(cost["said"]) < 400, cost
        assert "\n" not in cost["said"], cost


@pytest.mark.parametrize("item", [b"0,", b"[],", b"{},", b'"a",', b'"\\"",', b'["],[,\\\\",'])
def test_a_body_of_too_many_values_is_refused_in_one_line(item):
    said = (
        r"^the body has up to [\d,]+ JSON values, the limit is 1,000,000; send fewer per message$"
    )
    with pytest.raises(BadBodyError, match=said):
        read_json(filled(b"[", item, b"0]"))


@pytest.mark.parametrize("text", [",", "[", "{", '\\"', "\\\\", '\\\\\\",[', "\\n,", "😀["])
def test_what_stands_in_a_string_is_no_value(text):
    body = filled(b'{"a":"', text.encode(), b'","b":[0,0,{}]}')
    value = read_json(body)
    assert value["b"] == [0, 0, {}]
    assert value["a"] == json.loads(f'"{text}"') * (len(value["a"]) // len(json.loads(f'"{text}"')))


def test_as_many_values_as_are_allowed_are_read():
    assert len(read_json(filled(b"[", b"0,", b"0]", MAX_VALUES - 1))) == MAX_VALUES
    assert len(read_json(filled(b"[", b'",",', b"0]", MAX_VALUES - 1))) == MAX_VALUES
