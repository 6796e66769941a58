"""Savepoints: states as a file of JSON lines, complete or refused.

    {"tiercel":"state","format":1,"version":…,"topology":…,"saved":…,"bolts":[…]}
    {"bolt":"count","key":"falcon","value":7}
    {"bolt":"count","place":[0,17],"key_base64":…,"mark_base64":…}
    {"end":{"entries":1,"marks":1}}

The first line says how many entries and marks of which bolts follow, the last one proves that none
is missing. Keys and values are those of ``encoding``, so a file can be read and edited; an entry
that another program wrote in another form is kept in base64. A mark is a key that a bolt with
``once`` remembers; ``place`` is its shard and its bucket there.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from tiercel.queues.nouns import counted
from tiercel.spark_jobs.errors import BadStateError, SavepointError
from tiercel.spark_jobs.state.encoding import (
    LARGEST_VALUE,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tiercel.spark_jobs.state.redis_shard import FIELD_BYTES, TIME_BYTES

FORMAT = 1
# Longer than the line of the largest value that base64 makes longer, with its key.
_LONGEST_LINE = 4 * LARGEST_VALUE
_EXACT = ConfigDict(extra="forbid")
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
_Count = Annotated[int, Field(strict=True, ge=0)]
_Shards = Annotated[int, Field(strict=True, ge=1, le=4_096)]
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBolt:
    """The state of one bolt, as the first line of a file describes it."""

    __pydantic_config__ = _EXACT
    name: StrictStr
    # Number of tasks that wrote it, for people: any number of tasks may read it.
    tasks: _Count
    shards: _Shards
    entries: _Count
    marks: _Count
    # Seconds that the clock of the marks has run, per shard; empty if there were never any.
    ran: tuple[_Count, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedStates:
    """The first line of a file."""

    __pydantic_config__ = _EXACT
    tiercel: Literal["state"] = "state"
    format: Literal[1] = 1
    # Version of tiercel that wrote the file, and time in ISO 8601.
    version: StrictStr
    saved: StrictStr
    topology: StrictStr
    bolts: tuple[SavedBolt, ...]

    def bolt(self, name: str) -> SavedBolt | None:
        """Return the bolt of this name; None if the file has none."""
        return next((bolt for bolt in self.bolts if bolt.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedEntry:
    """An entry of a state as Redis has it."""

    bolt: str
    field: bytes
    value: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedMark:
    """A remembered key as Redis has it, with its shard and its bucket there."""

    bolt: str
    shard: int
    bucket: int
    field: bytes
    mark: bytes


Saved = SavedEntry | SavedMark
_HEADER = TypeAdapter(SavedStates)


def write_savepoint(path: Path, header: SavedStates, saved: Iterable[Saved]) -> None:
    """Write a file, all of it or nothing; readable for this user only.

    Raises SavepointError if it exists, cannot be written, or does not get the numbers of entries
    and marks that the header promises; errors of ``saved`` as they are.
    """
    name: str | None = None
    try:
        try:
            if path.exists():
                raise SavepointError(
                    f"{path} exists already: name another file, or remove it first"
                )
            made, name = mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(made, "wb") as file:
                _write(file, header, saved)
                file.flush()
                os.fsync(made)
            os.replace(name, path)  # noqa: PTH105 - in one step, as the rest
            name = None
        except OSError as error:
            raise SavepointError(
                f"cannot write {path}: {error.strerror}; nothing was left behind"
            ) from error
    finally:
        if name is not None:
            with suppress(OSError):
                Path(name).unlink()


def _write(file: BinaryIO, header: SavedStates, saved: Iterable[Saved]) -> None:
    file.write(_dumps(_HEADER.dump_python(header, mode="json")).encode() + b"\n")
    numbers = Counter[tuple[str, bool]]()
    for one in saved:
        numbers[one.bolt, isinstance(one, SavedMark)] += 1
        file.write(line_of(one) + b"\n")
    for bolt in header.bolts:
        if (numbers[bolt.name, False], numbers[bolt.name, True]) != (bolt.entries, bolt.marks):
            raise SavepointError(
                f"the state of {bolt.name} changed while it was read: something still writes to it"
            )
    file.write(_dumps(_end_of(header)).encode() + b"\n")


def line_of(one: Saved) -> bytes:
    """Return the line of an entry or a mark, without its line break."""
    bolt = _dumps(one.bolt).encode()
    if isinstance(one, SavedMark):
        said = {
            "place": [one.shard, one.bucket],
            "key_base64": _base64(one.field),
            "mark_base64": _base64(one.mark),
        }
        return b'{"bolt":%s,%s' % (bolt, _dumps(said).encode()[1:])
    if _is_ours(one.field, one.value):
        return b'{"bolt":%s,"key":%s,"value":%s}' % (bolt, one.field, one.value)
    said = {"key_base64": _base64(one.field), "value_base64": _base64(one.value)}
    return b'{"bolt":%s,%s' % (bolt, _dumps(said).encode()[1:])


def _is_ours(field: bytes, value: bytes) -> bool:
    """Return True if reading the entry from JSON and writing it gives the same bytes."""
    try:
        same: bool = (
            encode_key(decode_key(field)) == field and encode_value(decode_value(value)) == value
        )
    except (*_STRANGE, BadStateError):
        return False
    return same


def _end_of(header: SavedStates) -> dict[str, Any]:
    return {
        "end": {
            "entries": sum(bolt.entries for bolt in header.bolts),
            "marks": sum(bolt.marks for bolt in header.bolts),
        }
    }


@contextmanager
def open_savepoint(path: Path) -> Iterator[SavepointFile]:
    """Open a file and read its first line. Raises SavepointError."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise SavepointError(f"cannot read {path}: {error.strerror}") from error
    with file:
        yield SavepointFile(path, file)


class SavepointFile:
    """An open savepoint."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Raises SavepointError unless the first line is one of this format."""
        self._path = path
        self._file = file
        self.header = self._header(file.readline(_LONGEST_LINE))

    def check(self) -> None:
        """Read all of it. Raises SavepointError, which names the line."""
        for _ in self.saved():
            pass

    def saved(self) -> Iterator[Saved]:
        """Yield the entries and marks, from the first on; raises the errors of ``check``."""
        self._file.seek(0)
        self._file.readline(_LONGEST_LINE)
        numbers = Counter[tuple[str, bool]]()
        number = 1
        while True:
            number += 1
            line = self._file.readline(_LONGEST_LINE)
            if not line.endswith(b"\n"):
                raise SavepointError(
                    f"{self._path} is cut off in or after line {number - 1:,}: its last line is "
                    "missing; export again, or copy the file again"
                )
            said = self._parsed(line, number)
            if "end" in said:
                self._check_end(said, numbers, number)
                return
            one = self._saved_of(said, number)
            numbers[one.bolt, isinstance(one, SavedMark)] += 1
            yield one

    def _header(self, line: bytes) -> SavedStates:
        try:
            said = json.loads(line)
            kind = said["tiercel"], said["format"]
        except _STRANGE:
            kind = None, None
        if kind[0] != "state":
            raise SavepointError(
                f"{self._path} was not written by tiercel state export: its first line is another"
            )
        if kind[1] != FORMAT:
            raise SavepointError(
                f"{self._path} has format {kind[1]!r:.20}, and this version of tiercel reads "
                f"{FORMAT}: import it with the version that wrote it, {said.get('version')!r:.40}"
            )
        try:
            header: SavedStates = _HEADER.validate_python(said)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = " ".join(map(str, first["loc"]))
            raise SavepointError(
                f"the first line of {self._path} is wrong: {place}: {first['msg']}"
            ) from None
        if not header.bolts:
            raise SavepointError(
                f"the first line of {self._path} names no bolt: there is no state to import"
            )
        if len({bolt.name for bolt in header.bolts}) < len(header.bolts):
            raise SavepointError(f"the first line of {self._path} names a bolt twice")
        return header

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            said = json.loads(line)
        except _STRANGE:
            said = None
        if not isinstance(said, dict):
            raise self._bad(number, "it is no JSON object")
        return said

    def _saved_of(self, said: dict[str, Any], number: int) -> Saved:
        name = said.get("bolt")
        bolt = self.header.bolt(name) if isinstance(name, str) else None
        if bolt is None:
            raise self._bad(number, f"the first line has no bolt {name!r:.60}")
        try:
            return _mark_of(bolt, said) if "place" in said else _entry_of(bolt.name, said)
        except (*_STRANGE, BadStateError) as error:
            reason = f": {error}" if isinstance(error, ValueError) else ""
            raise self._bad(number, f"it is no entry of a state{reason}") from None

    def _check_end(
        self, said: dict[str, Any], numbers: Counter[tuple[str, bool]], number: int
    ) -> None:
        for bolt in self.header.bolts:
            for is_mark, promised in ((False, bolt.entries), (True, bolt.marks)):
                found = numbers[bolt.name, is_mark]
                if found != promised:
                    noun = "remembered key" if is_mark else "entry"
                    raise SavepointError(
                        f"{self._path} has {_counted(found, noun)} of {bolt.name}, and its first "
                        f"line says {promised:,}: export again, or copy the file again"
                    )
        if said != _end_of(self.header):
            raise self._bad(number, "its numbers differ from the first line's")
        if self._file.readline(2):
            raise self._bad(number + 1, "it comes after the last line")

    def _bad(self, number: int, why: str) -> SavepointError:
        return SavepointError(f"{self._path}, line {number:,}: {why}; nothing was imported")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} entries" if noun == "entry" and number != 1 else counted(number, noun)


def _entry_of(bolt: str, said: dict[str, Any]) -> SavedEntry:
    """Parse an entry. Raises one of ``_STRANGE``, BadStateError."""
    if said.keys() == {"bolt", "key", "value"}:
        field = _dumps(said["key"]).encode()
        value = _dumps(said["value"]).encode()
        if not _is_ours(field, value):
            raise ValueError("no state has such a key or value")
    elif said.keys() == {"bolt", "key_base64", "value_base64"}:
        field = _unbase64(said["key_base64"])
        value = _unbase64(said["value_base64"])
    else:
        raise ValueError("it has other members than bolt, key and value")
    return SavedEntry(bolt=bolt, field=field, value=value)


def _mark_of(bolt: SavedBolt, said: dict[str, Any]) -> SavedMark:
    """Parse a mark. Raises one of ``_STRANGE``."""
    if said.keys() != {"bolt", "place", "key_base64", "mark_base64"}:
        raise ValueError("it has other members than a remembered key")
    shard, bucket = said["place"]
    if type(shard) is not int or type(bucket) is not int or not 0 <= shard < bolt.shards:
        raise ValueError("there is no such place")
    field, mark = _unbase64(said["key_base64"]), _unbase64(said["mark_base64"])
    if len(field) != FIELD_BYTES or len(mark) < TIME_BYTES:
        raise ValueError("it is a remembered key of another length: export again")
    return SavedMark(bolt=bolt.name, shard=shard, bucket=bucket, field=field, mark=mark)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
