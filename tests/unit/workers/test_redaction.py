"""Passwords are removed from all output, whatever their characters, and in linear time."""

import json
import logging
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tiercel.spark_jobs.logs.formatters import LONGEST, JsonFormatter, TextFormatter, redact
from tiercel.workers.config import Settings
from tiercel.workers.errors import ConfigError

FORMS = (
    ("amqp", "amqp://user:{}@rabbit:5672/vhost"),
    ("amqp", "amqps://us@er:{}@rabbit:5671,other:5671"),
    ("redis", "redis://:{}@redis:6379/0"),
    ("redis", "redis://h/0?password={}"),
    ("redis", "rediss://h/0?ssl_password={}&client_name=c"),
    ("redis", "redis://a:6379,redis://:{}@b:6379"),
    ("redis", "redis+sentinel://:{}@h:26379,i/m"),
    ("redis", "redis+sentinel://h:26379/m?sentinel_password={}"),
    ("redis", "redis+cluster://:{}@h,i"),
    ("management", "http://user:{}@rabbit:15672"),
)


PASSWORDS = (
    "S3CRET",
    "S3'CRET",
    'S3"CRET',
    "S3 CRET",
    "S3,CRET",
    "S3@CRET",
    "S3:CRET",
    "S3, CR ET",
)
# A password in the place of a user may have none of these characters.
LONE = "redis://{}@redis:6379/0"


@pytest.mark.parametrize(
    ("setting", "form", "password"),
    [(*form, password) for form in FORMS for password in PASSWORDS] + [("redis", LONE, "S3CRET")],
)
def test_no_part_of_a_password_is_shown_in_a_text_in_settings_or_in_logs(setting, form, password):
    url = form.format(password)
    record = logging.LogRecord("x", 30, "", 0, "cannot reach %s, again", (url,), None)
    shown = [
        redact(url),
        redact(f"cannot reach '{url}', again"),
        TextFormatter().format(record),
        JsonFormatter().format(record),
    ]
    try:
        shown.append(repr(Settings(**{setting: url})))
    except ValueError:
        assert "@" in password, "what is refused is shown nowhere"
    for each in shown:
        assert "S3" not in each, each
        assert "CR" not in each, each
        assert "ET" not in each, each


@given(
    st.sampled_from(FORMS),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=20),
)
def test_whatever_password_settings_take_is_not_in_their_repr(form, password):
    setting, form = form
    assume("&" not in password and ",redis" not in password)
    try:
        shown = repr(Settings.load(**{setting: form.format(f"Q{password}Q")}))
    except ConfigError as error:
        shown = str(error)
    assert f"Q{password}Q" not in shown


@pytest.mark.parametrize("control", ["\n", "\t", "\x1b", "\x7f", "\r"])
def test_an_address_with_a_control_character_is_refused_in_one_line(control):
    with pytest.raises(ConfigError, match="--amqp: must not have a line break") as refused:
        Settings.load(amqp=f"amqp://u:S3{control}CRET@rabbit")
    assert "CRET" not in str(refused.value)
    assert Settings.load(amqp="amqp://rabbit\n").amqp == "amqp://rabbit", (
        "the end of a file is none"
    )


@pytest.mark.parametrize(
    "part",
    [
        "A",
        "://",
        "a:",
        "@",
        "?",
        "&",
        "?a_",
        "a://b:",
        "?password=,a",
        "://a@",
        "://a:b ",
        "password=",
        "?password=,a+",
    ],
)
def test_it_is_linear(part):
    def cost(length):
        text = part * (length // len(part))
        began = time.process_time()
        for start in range(0, len(text), LONGEST):
            redact(text[start : start + LONGEST])
        return time.process_time() - began

    assert cost(1_000_000) < 3


def test_a_long_text_is_cut_and_says_so():
    shown = redact("A" * 1_000_000)
    assert shown == "A" * LONGEST + "… and 983,616 characters more"
    line = JsonFormatter().format(logging.LogRecord("x", 30, "", 0, "%s", ("A" * 1_000_000,), None))
    assert len(line) < LONGEST + 300
    assert json.loads(line)["message"].endswith("more"), "what is cut is still JSON"


@pytest.mark.parametrize("before", range(0, 60, 7))
def test_no_cut_goes_through_a_password(before):
    url = "amqp://user:S3CRETS3CRETS3CRET@rabbit:5672/vhost"
    assert "S3" not in redact("x" * (LONGEST - before) + url + "y" * 100)
