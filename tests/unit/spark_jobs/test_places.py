"""The line of the user's code in an error, and the user's part of its traceback."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import _RemoteTraceback
from pathlib import Path

import pytest

from tiercel.acker.ledger import REASON_LENGTH
from tiercel.spark_jobs import reasons
from tiercel.spark_jobs.reasons import (
    LONGEST,
    place_of,
    reason_at,
    reason_given,
    user_traceback,
)

HELPERS = """
import json


def look(order):
    return order["deep"]


def read(text):
    return json.loads(text)


def again(order):
    try:
        look(order)
    except KeyError as error:
        raise ValueError("no order") from error
"""


@pytest.fixture
def helpers(tmp_path, monkeypatch):
    """A module of the user's in a package, and another beside the package."""
    (tmp_path / "shop_of_mine").mkdir()
    (tmp_path / "shop_of_mine" / "__init__.py").write_text("")
    (tmp_path / "shop_of_mine" / "helpers.py").write_text(HELPERS)
    (tmp_path / "helpers_of_mine.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module
    for name in ("shop_of_mine", "shop_of_mine.helpers", "helpers_of_mine"):
        sys.modules.pop(name, None)


def raised(call, *arguments) -> BaseException:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_innermost_line_of_the_user_s_code(helpers):
    assert place_of(raised(helpers("helpers_of_mine").look, {})) == "helpers_of_mine.py:6"
    assert reason_at(raised(helpers("helpers_of_mine").look, {})) == (
        "KeyError: 'deep' (helpers_of_mine.py:6)"
    )


def test_a_module_of_a_package_is_named_with_it(helpers):
    assert place_of(raised(helpers("shop_of_mine.helpers").look, {})) == "shop_of_mine/helpers.py:6"


def test_a_library_s_line_is_the_library_s_business(helpers):
    assert place_of(raised(helpers("helpers_of_mine").read, "{")) == "helpers_of_mine.py:10"


def test_a_bolt_that_is_installed_is_its_user_s_own(helpers, monkeypatch):
    monkeypatch.setattr(reasons, "_is_library", lambda file: "test_places" not in file)
    module = helpers("shop_of_mine.helpers")
    error = raised(module.read, "{")
    # The traceback begins at the bolt.
    error.__traceback__ = error.__traceback__.tb_next
    assert place_of(error) == "shop_of_mine/helpers.py:10"


def test_what_went_through_no_line_of_the_user_s_has_no_place():
    assert place_of(KeyError("made, not raised")) == ""
    assert reason_at(KeyError("x")) == "KeyError: 'x'"


def test_an_installed_bolt_that_waits_for_a_pool_is_named_and_not_the_pool(helpers, monkeypatch):
    monkeypatch.setattr(reasons, "_is_library", lambda _file: True)
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(helpers("shop_of_mine.helpers").look, {}).exception()
    assert place_of(error) == "shop_of_mine/helpers.py:6"


def test_a_library_that_a_pool_calls_has_the_line_that_gives_the_reason():
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(json.loads, "{").exception()
    assert place_of(error) == ""
    line = sys._getframe().f_lineno + 1
    assert reason_given(error).endswith(f"test_places.py:{line})")
    assert reason_given(ValueError("made, not raised")) == "ValueError: made, not raised"


def test_an_error_of_a_process_pool_has_the_line_in_that_process(helpers):
    error = raised(helpers("helpers_of_mine").look, {})
    text = "".join(traceback.format_exception(error))
    sent = KeyError("deep")
    sent.__cause__ = _RemoteTraceback(text)
    sent.__traceback__ = raised(json.loads, "{").__traceback__.tb_next
    assert place_of(sent) == "helpers_of_mine.py:6"


def test_a_group_of_errors_has_the_message_and_the_place_of_the_first_one(helpers):
    """A ``TaskGroup`` says only how many errors there were."""

    async def look(order):
        helpers("helpers_of_mine").look(order)

    async def together():
        async with asyncio.TaskGroup() as group:
            group.create_task(look({}))
            group.create_task(look({}))

    assert reason_at(raised(asyncio.run, together())) == (
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): KeyError: 'deep' "
        "(helpers_of_mine.py:6)"
    )
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("made by hand")])])
    assert reason_at(nested) == (
        "ExceptionGroup: outer (1 sub-exception): ExceptionGroup: inner (1 sub-exception): "
        "ValueError: made by hand"
    )


def test_a_long_reason_keeps_its_place(helpers):
    error = raised(helpers("helpers_of_mine").look, {})
    error.args = ("x" * 1000,)
    reason = reason_at(error, "flush")
    assert len(reason) == REASON_LENGTH
    assert reason.startswith("flush: KeyError: 'xxx")
    assert reason.endswith(" (helpers_of_mine.py:6)")


def test_a_traceback_begins_with_the_user_s_first_line_and_has_the_causes(helpers):
    text = user_traceback(raised(helpers("helpers_of_mine").again, {}))
    assert 'line 6, in look\n    return order["deep"]' in text
    assert "The above exception was the direct cause" in text
    assert text.endswith("ValueError: no order")


def test_a_traceback_has_no_frame_of_ours_before_the_user_s():
    def decoding():
        json.loads("{")

    error = raised(eval, "call()", {"__name__": "tiercel.some.module", "call": decoding})
    # The test's own frame is the outermost one.
    error.__traceback__ = error.__traceback__.tb_next
    lines = user_traceback(error).splitlines()
    assert Path(__file__).name in lines[1]
    assert lines[1].endswith("in decoding")


def test_of_a_long_traceback_the_beginning_and_the_end_are_kept(helpers):
    error = raised(helpers("helpers_of_mine").look, {})
    error.args = ("x" * 100_000,)
    text = user_traceback(error)
    assert text.startswith("Traceback (most recent call last):")
    assert "characters left out" in text
    assert len(text) < LONGEST + 100


def test_a_message_that_cannot_be_read_harms_nothing():
    class UnreadableError(Exception):
        def __str__(self) -> str:
            return self.detail

    def fail():
        raise UnreadableError

    assert "UnreadableError" in user_traceback(raised(fail))
