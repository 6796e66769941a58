"""Time and memory for one JSON body: ``python -m tests.support.body_cost NAME …`` prints a line of
JSON for each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tiercel.queues.errors import BadBodyError
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.values.formats import decoder_for
from tiercel.queues.values.json_values import MAX_VALUES
from tiercel.queues.values.schema import Schema

SCHEMA = Schema.parse(
    "a string, n long, d decimal(38,10), x binary, l array<long>, dl array<decimal(38,10)>, tl "
    "array<timestamp>, s array<string>, f array<double>, g array<array<long>>"
)
ASTRAL = "😀".encode()  # makes a text of four bytes per character


def filled(before: bytes, item: bytes, after: bytes = b"", most: int = MAX_BODY_BYTES) -> bytes:
    """Repeat the text up to the size of the largest body, or up to this often."""
    return (
        before + item * min(most, (MAX_BODY_BYTES - len(before) - len(after)) // len(item)) + after
    )


def names(count: int, form: str) -> Iterator[bytes]:
    return ((form % number).encode() for number in range(count))


def wide(*more: bytes, form: str = '"%x":0') -> bytes:
    """Build an object with as many different names as allowed, filled up with a string of wide
    characters.
    """
    start = (
        b"{" + b",".join([*names(MAX_VALUES - 4 - len(more), form), *more]) + b',"pad":"' + ASTRAL
    )
    return start + b"x" * (MAX_BODY_BYTES - len(start) - 2) + b'"}'


# Bodies that take the most memory.
LARGE = {
    "different names": wide,
    "different names, one twice": lambda: wide(b'"0":0'),
    "different names, not Latin": lambda: b"{" + b",".join(names(700_000, '"Ā%x":"Ā"')) + b"}",
    "decimals": lambda: filled(b'{"dl":[', b'"1.5000000",', b"0]}", MAX_VALUES - 3),
    "wide characters": lambda: filled(b'{"a":"' + ASTRAL, b"x", b'"}'),
}
# Bodies that once took hours or killed the process, and the worst of each kind of token.
HARD = {
    "16,000 names, one twice": lambda: (
        b"{" + b",".join([*names(16_000, '"%x":0'), b'"0":0']) + b"}"
    ),
    "decimal of zeros": lambda: b'{"d":"1' + b"0" * 5_500_000 + b'e-5500000"}',
    "decimal of nines": lambda: filled(b'{"d":"', b"9", b'"}'),
    "digits": lambda: filled(b'{"n":', b"9", b"}"),
    "digits behind the point": lambda: filled(b'{"f":[0.', b"9", b"]}"),
    "many long numbers": lambda: filled(b'{"dl":[', b"9" * 4_299 + b",", b"0]}"),
    "numbers": lambda: filled(b'{"l":[', b"0,", b"0]}"),
    "strings": lambda: filled(b'{"s":[', b'"ab",', b"0]}"),
    "arrays": lambda: filled(b'{"g":[', b"[],", b"[]]}"),
    "objects": lambda: filled(b'{"z":[', b"{},", b"{}]}"),
    "arrays in arrays": lambda: filled(b"", b"["),
    "objects in objects": lambda: filled(b"", b'{"":'),
    "arrays, less deep": lambda: filled(b'{"z":[', b"[" * 500 + b"]" * 500 + b",", b"0]}"),
    "commas in a string": lambda: filled(b'{"a":"', b",", b'"}'),
    "brackets and escaped quotes in a string": lambda: filled(b'{"a":"', b'\\"[{,\\\\', b'"}'),
    "escaped quotes without an end": lambda: filled(b'{"a":[', b'"\\"",') + b'"\\',
    "escapes": lambda: filled(b'{"a":"', b"\\u0101", b'"}'),
    "lone surrogates": lambda: filled(b'{"a":"', b"\\ud800", b'"}'),
    "a lone surrogate at the end": lambda: filled(b'{"a":"', b"x", b'\\ud800"}'),
    "quotes": lambda: filled(b"", b'"'),
    "backslashes": lambda: filled(b'{"a":"', b"\\"),
    "spaces": lambda: filled(b"", b" "),
    "base64": lambda: filled(b'{"x":"', b"AAAA", b'"}'),
    "not base64": lambda: filled(b'{"x":"', b"A", b'!"}'),
    "not UTF-8 at the end": lambda: filled(b"", b" ", b"\xff"),
    "timestamp": lambda: filled(b'{"tl":["', b"2", b'"]}'),
}
BODIES = LARGE | HARD


def cost(name: str) -> dict[str, object]:
    """Return the seconds of CPU, the rise of peak memory, and the result."""
    decode = decoder_for(SCHEMA)
    body = BODIES[name]()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _memory("VmRSS")
    begun = time.process_time()
    try:
        values = decode(body)
        SCHEMA.batch([values])
        said = ""
    except BadBodyError as error:
        said = str(error)
    return {
        "name": name,
        "bytes": len(body),
        "seconds": time.process_time() - begun,
        "peak": _memory("VmHWM") - before,
        "said": said,
    }


def _memory(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(which))


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        sys.stdout.write(json.dumps(cost(chosen)) + "\n")
