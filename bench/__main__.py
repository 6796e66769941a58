"""``make bench``: measures all parts, prints a table, writes bench/results.json.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import HEADLINES, REFERENCE_PER_S, Headline, headline, headlines, slower
from bench.machine import load, machine
from bench.page.blocks import write
from bench.parts import FULL, PARTS, QUICK, Scale
from bench.rig import BenchError
from tiercel.compose.errors import ServiceError

FOLDER = Path(__file__).resolve().parent
PAGES = (FOLDER.parent / "docs/performance.md", FOLDER.parent / "README.md")
IMAGES = FOLDER.parent / "docs/images"
_BUSY = 0.5


def main() -> int:
    """Run the benchmark; return the exit code, 1 if a part could not be measured."""
    arguments = _arguments()
    path = FOLDER / ("results-quick.json" if arguments.quick else "results.json")
    if arguments.write_docs:
        return _write_docs(path, arguments.peers)
    parts = arguments.only or [part for part in PARTS if part != "growth" or not arguments.quick]
    # Parts that are measured one by one share one file; a full run starts a new file.
    results: dict[str, Any] = (
        json.loads(path.read_text()) if arguments.only and path.exists() else {"parts": {}}
    )
    results |= {"machine": machine(), "quick": arguments.quick}
    _say(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    if load() > _BUSY:
        _say(f"other work runs on this machine (load {load()}): the figures say little")
    scale = QUICK if arguments.quick else FULL
    if arguments.sentences:
        scale = replace(scale, sentences=arguments.sentences)
    failed = False
    for part in parts:
        found = results["parts"][part] = _measured(part, scale, arguments.peers)
        failed |= "error" in found or any("error" in did for did in _single(part, found))
        path.write_text(json.dumps(results, indent=1) + "\n")
    figures = headline(results)
    for line in table(figures, headlines(results)):
        _say(line)
    if (factor := slower(results)) > 1:
        _say(
            f"goals of latencies are {factor:.2f} times the goals on a machine whose bare consumer "
            f"does {REFERENCE_PER_S:,}/s"
        )
    print(json.dumps(figures), flush=True)
    return int(failed)


def _single(part: str, measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements that can fail alone: contestants of a round, runs of slow work."""
    found = measured.get("found")
    if part == "throughput" and found:
        return [did for of_round in found for did in of_round.values()]
    if part == "slow" and found:
        return [did for runs in found.values() for did in runs]
    if part == "storm" and found:
        rounds = [did for of_round in found["rounds"] for did in of_round.values()]
        return [*rounds, *found["uneven"].values()]
    return []


def table(figures: dict[str, Any], headlines: Sequence[Headline] = HEADLINES) -> list[str]:
    """Format the figures as a table for a terminal."""
    rows = [("figure", "measured", "goal", "")]
    for row in headlines:
        value = figures[row.key]
        asked = f"{row.sense} {row.shown(row.target)}" if row.target else ""
        missed = "missed" if row.target and row.met(value) is False else ""
        rows.append((row.says.replace("`", ""), row.shown(value), asked, missed))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{says:<{widths[0]}}  {value:>{widths[1]}}  {asked:<{widths[2]}}  {missed}".rstrip()
        for says, value, asked, missed in rows
    ]
    return ["", lines[0], "-" * max(map(len, lines)), *lines[1:], ""]


def _measured(part: str, scale: Scale, peers: str | None) -> dict[str, Any]:
    _say(f"-- {part}")
    began = time.monotonic()
    about = {"measured": datetime.now(UTC).isoformat(timespec="seconds"), "load_before": load()}
    try:
        found = PARTS[part](scale, peers, _say)
    except (BenchError, ServiceError) as error:
        _say(f"{part} was not measured: {error}")
        return {**about, "error": str(error)}
    return {**about, "seconds": round(time.monotonic() - began), "found": found}


def _write_docs(path: Path, peers: str | None) -> int:
    if not path.exists():
        _say(f"there is no {path.name} yet: run make bench first")
        return 2
    write(json.loads(path.read_text()), PAGES)
    if peers is None:
        _say(
            "the tables are written, the plots are not: name a Python that has matplotlib with "
            "--peers"
        )
        return 0
    # matplotlib is installed in the environment of the peers.
    return subprocess.run([peers, FOLDER / "plots.py", path, IMAGES], check=False).returncode  # noqa: S603 - our own script


def _say(line: str) -> None:
    print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure tiercel beside its limit and its peers."
    )
    parser.add_argument("--quick", action="store_true", help="the headline figures, once")
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="this part; may be repeated. Earlier measurements stay in the file. storm needs Maven "
        "and Java's compiler, and is left out without them",
    )
    parser.add_argument("--sentences", type=int, help="how many to drain, to try something out")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="measure nothing: put the last figures into the pages",
    )
    parser.add_argument(
        "--peers",
        help="a Python that has bench/requirements.in installed; without it there are fewer peers",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _say("interrupted; the parts that are complete are in the file")
        sys.exit(130)
