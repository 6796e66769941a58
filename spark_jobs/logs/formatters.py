"""Text of log records: readable lines at a terminal, or one JSON object per line.

Passwords in URLs are redacted, texts over 16 KiB are cut, and no record can look like two. Reasons,
bodies and names come from publishers, bolts and any client of Redis. A terminal obeys C0 and C1
controls (titles, colours, its clipboard), and reorders text after a bidirectional override. So all
text that tiercel shows or logs passes through ``printable``.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import sys
import threading
import unicodedata
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

log = logging.getLogger(__name__)
# Longest text that is redacted. Every log line is, and outsiders write some of the text.
LONGEST = 16 * 1024

# A cut inside an address would show half a password, so the cut is made before the address.
_LONGEST_ADDRESS = 2 * 1024

# user:password@ after ://, the password up to the last @ before the path. As in urlsplit, / ? and #
# end a login; quotes, commas and blanks belong to the password. The search is linear, because two
# matches cannot begin in one stretch without a slash. A pattern for the scheme before :// would
# begin anew at every letter.
_CREDENTIALS = re.compile(r"://([^/?#:\r\n]*):[^/?#\r\n]*@")

# Redis has no users without a password, so a lone word is a password whose colon was forgotten.
_LONE = re.compile(r"(?<=redis)(s?(?:\+sentinel|\+cluster)?)://[^/?#:@\s]+@", re.IGNORECASE)

# redis+sentinel://…?sentinel_password=…, and other clients' options: password, ssl_password,
# sslpassword.
# The value may have blanks, commas and quotes, so it ends with the option, the line or the address.
_OPTION = re.compile(
    r"([?&]\w{0,64}password=)(?:(?!,\s*[a-z][a-z0-9+.-]{0,20}://)[^&\r\n])*", re.IGNORECASE
)


def redact(text: str) -> str:
    """Return the text, cut to LONGEST, with the password of every URL in it replaced.

    >>> redact("connecting to amqp://guest:s3cret@rabbit:5672/%2F")
    'connecting to amqp://guest:***@rabbit:5672/%2F'
    >>> redact("redis+sentinel://:a@host/name?sentinel_password=b&client_name=c")
    'redis+sentinel://:***@host/name?sentinel_password=***&client_name=c'
    """
    if len(text) > LONGEST:
        return f"{_replaced(_cut(text))}… and {len(text) - LONGEST:,} characters more"
    return _replaced(text)


def _cut(text: str) -> str:
    kept = text[:LONGEST]
    begins = kept.rfind("://", LONGEST - _LONGEST_ADDRESS)
    return kept[:begins] if begins >= 0 else kept


def _replaced(text: str) -> str:
    if "://" not in text and "password=" not in text.lower():
        return text
    text = _CREDENTIALS.sub(r"://\1:***@", text)
    return _OPTION.sub(r"\1***", _LONE.sub(r"\1://***@", text))


def printable(text: str, kept: str = "") -> str:
    r"""Return the text with every unprintable character, except those in ``kept``, escaped as in
    Python.

    >>> printable("a\x1b[2Jb\x9b\u202e\n")
    'a\\x1b[2Jb\\x9b\\u202e\\n'
    >>> printable("two\nlines, 日本　語", kept="\n")
    'two\nlines, 日本　語'
    """
    if text.isprintable():
        return text
    return "".join(each if each in kept or _is_seen(each) else _escaped(each) for each in text)


def _is_seen(character: str) -> bool:
    # str.isprintable is False for all blanks except the ASCII one; the others are harmless.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# Attributes of a record other than the caller's ``extra``.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "event",
    "component",
}
# Names in a JSON line that are not the caller's.
_FIELDS = frozenset({
    "time", "level", "logger", "component", "event", "message", "error", "stack",
})  # fmt: skip
_OURS = "tiercel."
_CONTINUED = "\n    "
# Deeper values, such as a list in itself, are shown as texts.
_DEEPEST = 20
# Python writes no integer of more than 4,300 digits.
_LARGEST_BITS = 10_000
# Libraries whose failures tiercel reports itself: their own log lines would be duplicates.
QUIET = {
    "pika": logging.CRITICAL,
    # A line per message whose ``tracestate`` is not in W3C's form; it counts as none.
    "opentelemetry.trace.span": logging.ERROR,
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "urllib3": logging.WARNING,
}


def fitting(record: logging.LogRecord) -> logging.LogRecord:
    """Return the record; if its arguments do not fit its message, one whose message shows both.

    Python would print a traceback in its place, several lines that are no records.
    """
    try:
        record.getMessage()
    except Exception as error:  # noqa: BLE001 - a user's __str__ may raise anything
        made = copy.copy(record)
        made.msg = (
            f"{_text(record.msg)} does not fit {_text(record.args)}: "
            f"{type(error).__name__} ({record.filename}:{record.lineno})"
        )
        made.args = ()
        return made
    return record


class TextFormatter(logging.Formatter):
    """``07:06:28 INFO    spout-1  the message``; for a bolt's own logger ``enrich[7] its.name``.

    ``short`` leaves out time and level, for consoles that show them.
    """

    def __init__(self, component: str = "", *, short: bool = False) -> None:
        super().__init__("%(message)s")
        self._component = component
        self._short = short

    def format(self, record: logging.LogRecord) -> str:
        where = getattr(record, "component", None) or self._component or record.name
        bolt = getattr(record, "bolt", None)
        if bolt and not record.name.startswith(_OURS):
            where = f"{bolt}[{getattr(record, 'task', '')}] {record.name}"
        text = f"{where}  {super().format(fitting(record))}"
        trace_id = getattr(record, "trace_id", None)
        if trace_id is not None:
            text = f"{text} trace_id={trace_id} span_id={getattr(record, 'span_id', '')}"
        if not self._short:
            text = f"{datetime.fromtimestamp(record.created):%H:%M:%S} {record.levelname:<7} {text}"  # noqa: DTZ006 - the reader's clock
        # Lines after the first are indented, so that no message can forge the start of a record.
        return printable(redact(text), kept="\n\t").replace("\n", _CONTINUED)


class JsonFormatter(logging.Formatter):
    """One object per line: time (UTC), level, logger, component, event, message, the attributes in
    ``extra``, error, stack. An attribute that is named as one of the others gets the prefix
    ``extra_``.
    """

    def __init__(self, component: str = "") -> None:
        super().__init__("%(message)s")
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        component = getattr(record, "component", None) or self._component
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **({"component": component} if component else {}),
            "event": getattr(record, "event", ""),
            "message": fitting(record).getMessage(),
        }
        # A field of the same name would hide one that every line has.
        more = {key: value for key, value in vars(record).items() if key not in STANDARD}
        entry |= {f"extra_{key}" if key in _FIELDS else key: more[key] for key in more}
        if record.exc_text:
            # A record from another process has its traceback as text.
            entry["error"] = record.exc_text
        elif record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        # Redact each value before encoding: JSON would escape a quote in a password.
        return json.dumps(redacted(entry)).replace("\x7f", "\\u007f")


def redacted(value: object, depth: int = 0) -> Any:
    """Return a value for JSON, of any ``value``; its texts without passwords."""
    if depth < _DEEPEST and isinstance(value, dict):
        return {redact(_text(key)): redacted(each, depth + 1) for key, each in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [redacted(each, depth + 1) for each in value]
    if value is None or (isinstance(value, int) and value.bit_length() < _LARGEST_BITS):
        return value
    # JSON has no infinite numbers.
    if isinstance(value, float) and math.isfinite(value):
        return value
    return redact(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"


def plain_handler(form: str, component: str) -> logging.Handler:
    """Return a handler that writes to stderr, in the form ``json`` or ``text``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component) if form == "json" else TextFormatter(component))
    return handler


def log_to(handler: logging.Handler, level: str) -> None:
    """Send all log records of this process to the handler, and to no other."""
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    if threading.excepthook is threading.__excepthook__:  # else it is the user's own, or a test's
        threading.excepthook = _log_end
    hush_libraries()


def _log_end(ended: threading.ExceptHookArgs) -> None:
    """Log the exception that ended a thread; Python would print it, with passwords."""
    if not isinstance(ended.exc_value, SystemExit):
        log.error(
            "thread %s ended with an error",
            ended.thread.name if ended.thread else "?",
            exc_info=ended.exc_value,
            extra={"event": "thread_failed"},
        )


def hush_libraries() -> None:
    """Silence libraries whose failures tiercel reports itself."""
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for a record that py4j logs with the root logger: the traceback of a failed
    call, which also raises, or which follows when tiercel ends Spark while it starts.
    """
    return PurePath(record.pathname).parent.name != "py4j"
