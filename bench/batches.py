"""Rows per second into a database: a ``BatchBolt`` with one transaction per batch, compared with a
``BasicBolt`` with one transaction per row.

    python bench/batches.py [--rows 5000] [--batched 60000]

Both topologies run on private servers with default settings and one bolt task each. They write to
SQLite with its default settings: a transaction is on disk before its tuples are acked. Figures go
to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.growth import seconds_to_drain
from bench.probe import environment
from bench.rig import BenchError, running, sentences, servers
from bench.topologies.rows import DATABASE
from tiercel.workers.config import Settings

# Number of messages before the measurement, in which the bound on tuples in flight grows to what
# the work allows.
_WARM_UP = 2_000
_WITHIN_S = 240


@dataclass(frozen=True, kw_only=True)
class Inserted:
    """Messages that became rows."""

    kind: str
    rows: int
    wall_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.wall_s

    def line(self) -> str:
        """Format the figures as a line."""
        return f"{self.kind}: {self.rows:,} rows in {self.wall_s:.1f} s, {self.rows_per_s:,.0f}/s"


def measure(settings: Settings, kind: str, rows: int) -> Inserted:
    """Drain a queue of this many messages into a new database."""
    with tempfile.TemporaryDirectory(prefix="tiercel-bench-") as folder:
        path = Path(folder) / "rows.db"
        with (
            environment({DATABASE: str(path)}),
            running(kind, settings, module="bench.topologies.rows") as topology,
        ):
            seconds_to_drain(topology, _bodies(0, _WARM_UP), _WITHIN_S)
            wall_s = seconds_to_drain(topology, _bodies(_WARM_UP, rows), _WITHIN_S)
            with closing(sqlite3.connect(path)) as database:
                [[found]] = database.execute("SELECT count(*) FROM sentences")
    if found != _WARM_UP + rows:
        raise BenchError(f"{kind}: {found:,} rows for {_WARM_UP + rows:,} messages")
    return Inserted(kind=kind, rows=rows, wall_s=wall_s)


def _bodies(first: int, count: int) -> Iterator[bytes]:
    for number, sentence in enumerate(sentences(count), first):
        yield json.dumps({"number": number, "sentence": sentence.decode()}).encode()


def main() -> None:
    """Measure both topologies and print the ratio."""
    parser = argparse.ArgumentParser(description="Rows per second into a database.")
    parser.add_argument("--rows", type=int, default=5_000, help="messages, one transaction each")
    parser.add_argument("--batched", type=int, default=60_000, help="messages, in batches")
    given = parser.parse_args()
    with servers() as settings:
        alone = measure(settings, "rows", given.rows)
        print(alone.line(), flush=True)
        batched = measure(settings, "batches", given.batched)
        print(batched.line(), flush=True)
    ratio = batched.rows_per_s / alone.rows_per_s
    print(f"ratio: {ratio:.1f}")
    figures = {
        "rows_alone_per_s": round(alone.rows_per_s),
        "rows_batched_per_s": round(batched.rows_per_s),
        "batched_ratio": round(ratio, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
