"""A stranger's process that asks a running Spark for its broadcasts, with nothing but its ports and
Spark's own protocol.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

CHUNK_REQUEST = 0
CHUNK = 1
RPC_REQUEST = 3
RPC_ANSWER = 4
OPEN_BLOCKS = 0
STREAM_HANDLE = 3
FIRST_BROADCASTS = 20
LISTENING = "0A"
BLOCK_HEADER = struct.Struct("<8sBiii")


class RefusedError(Exception):
    """The port answers with something other than a block."""


def ports_of_session(session: int) -> set[int]:
    """Return every TCP port on which a process of this session (see ``setsid``) listens."""
    owned = {target for process in processes_of(session) for target in sockets_of(process)}
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for row in table.read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in owned:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def processes_of(session: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                yield process
        except OSError:
            continue


def sockets_of(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            yield str(descriptor.readlink())
        except OSError:
            continue


def stolen_from(port: int, host: str = "127.0.0.1") -> list[bytes]:
    """Return the content of the broadcasts behind this port; empty if it gives none away."""
    found = []
    for number in range(FIRST_BROADCASTS):
        try:
            with socket.create_connection((host, port), timeout=3) as connection:
                found.append(unpacked(fetch(connection, f"broadcast_{number}_piece0")))
        except TimeoutError:
            break
        except (OSError, RefusedError, struct.error):
            continue
    return found


def fetch(connection: socket.socket, block: str) -> bytes:
    words = text("any") + text("thief") + struct.pack(">i", 1) + text(block)
    message = struct.pack(">B", OPEN_BLOCKS) + words
    send(connection, RPC_REQUEST, struct.pack(">qi", 1, len(message)) + message)
    answer = received(connection, RPC_ANSWER)
    kind, stream, _ = struct.unpack_from(">Bqi", answer, 12)
    if kind != STREAM_HANDLE:
        raise RefusedError
    send(connection, CHUNK_REQUEST, struct.pack(">qi", stream, 0))
    return received(connection, CHUNK)[12:]


def text(word: str) -> bytes:
    return struct.pack(">i", len(word)) + word.encode()


def send(connection: socket.socket, kind: int, body: bytes) -> None:
    connection.sendall(struct.pack(">qB", 9 + len(body), kind) + body)


def received(connection: socket.socket, wanted: int) -> bytes:
    with connection.makefile("rb") as stream:
        length, kind = struct.unpack(">qB", stream.read(9))
        if kind != wanted or not 9 <= length < 1 << 24:
            raise RefusedError
        return stream.read(length - 9)


def unpacked(block: bytes) -> bytes:
    """Decompress Spark's LZ4, block by block."""
    plain = b""
    while len(block) > BLOCK_HEADER.size:
        magic, token, packed, size, _ = BLOCK_HEADER.unpack_from(block)
        if magic != b"LZ4Block":
            return plain + block
        body = block[BLOCK_HEADER.size :][:packed]
        plain += pa.decompress(body, size, codec="lz4_raw", asbytes=True) if token & 0x20 else body
        block = block[BLOCK_HEADER.size + packed :]
    return plain
