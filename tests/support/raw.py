"""Messages with properties as raw bytes, which any publisher can send but no client library."""

from __future__ import annotations

import struct

from pika import BasicProperties


def entry(name: bytes, value: bytes) -> bytes:
    """Return one header; ``value`` begins with its type."""
    return bytes([len(name)]) + name + value


def text(value: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(value)) + value


def timestamp(value: int) -> bytes:
    return b"T" + struct.pack(">Q", value)


def array(*values: bytes) -> bytes:
    wire = b"".join(values)
    return b"A" + struct.pack(">I", len(wire)) + wire


def table(*entries: bytes) -> bytes:
    wire = b"".join(entries)
    return b"F" + struct.pack(">I", len(wire)) + wire


def nested(depth: int, around: bytes = b"") -> bytes:
    """Return arrays inside each other."""
    found = array(around)
    for _ in range(depth - 1):
        found = array(found)
    return found


def nested_tables(depth: int) -> bytes:
    found = table()
    for _ in range(depth - 1):
        found = table(entry(b"", found))
    return found


def properties(*headers: bytes) -> bytes:
    """Return the wire form of properties with these headers and delivery mode 2."""
    flags = BasicProperties.FLAG_HEADERS | BasicProperties.FLAG_DELIVERY_MODE
    wire = b"".join(headers)
    return struct.pack(">HI", flags, len(wire)) + wire + b"\x02"


class Raw(BasicProperties):
    """Properties that are sent as the given bytes."""

    def __init__(self, wire: bytes) -> None:
        super().__init__()
        self._wire = wire

    def encode(self) -> list[bytes]:
        return [self._wire]


# Headers of messages that have done harm, or could: one of each kind.
ODD = {
    "timestamp in milliseconds": entry(b"at", timestamp(1_795_000_000_000)),
    "timestamp of 64 bits": entry(b"at", timestamp(2**64 - 1)),
    "timestamp in an array": entry(b"at", array(timestamp(2**62))),
    "array 600 deep": entry(b"deep", nested(600)),
    "array 2,000 deep": entry(b"deep", nested(2_000)),
    "array 12,000 deep": entry(b"deep", nested(12_000)),
    "table 2,000 deep": entry(b"deep", nested_tables(2_000)),
    "name not UTF-8": entry(b"\xff\xfe", b"t\x01") + entry(b"plain", b"V"),
    "name empty": entry(b"", b"t\x01"),
    "text not UTF-8": entry(b"s", text(b"\xff\xfe")),
    "fractions": entry(b"d", b"d" + struct.pack(">d", 1.5))
    + entry(b"f", b"f" + struct.pack(">f", 2.5)),
    "not a number": entry(b"d", b"d" + struct.pack(">d", float("nan"))),
    "infinite": entry(b"f", b"f" + struct.pack(">f", float("inf"))),
    "decimal of scale 255": entry(b"D", b"D" + struct.pack(">BI", 255, 2**32 - 1)),
    "small numbers": b"".join(
        entry(kind, kind + struct.pack(form, value))
        for kind, form, value in (
            (b"b", ">b", -5),
            (b"s", ">h", -5),
            (b"B", ">B", 255),
            (b"u", ">H", 65535),
            (b"i", ">I", 2**32 - 1),
        )
    ),
    "long of type L": entry(b"L", b"L" + struct.pack(">q", -(2**63))),
    "short of type U": entry(b"U", b"U" + struct.pack(">h", -5)),
    "type unknown": entry(b"z", b"Z\x00"),
    "cut off": entry(b"s", b"S" + struct.pack(">I", 2**31) + b"x"),
    "bytes": entry(b"x", b"x" + struct.pack(">I", 3) + b"\xff\x00a"),
    "void": entry(b"v", b"V"),
    "counts of a liar": entry(b"x-delivery-count", text(b"many"))
    + entry(b"x-acquired-count", nested(3)),
    "deaths of a liar": entry(b"x-death", array(table(entry(b"reason", array()))))
    + entry(b"x-tiercel-reason", table()),
    "many names": b"".join(entry(b"%d" % number, b"V") for number in range(15_000)),
    "as large as a frame": entry(b"s", text(b"x" * 131_020)),
    "a name twice": entry(b"n", b"V") + entry(b"n", b"t\x01"),
}
