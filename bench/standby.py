"""Time to the first ack, and CPU time of idle processes.

    python bench/standby.py [--seconds N]

The time to the first ack counts from the start of ``tiercel run``, with both servers running and a
sentence in the queue. The CPU time is that of all processes, servers included, while no message
comes, in percent of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.probe import ProbeResults
from bench.processes import BENCHMARK, cpu_seconds, spent
from bench.rig import ROOT, clear, fill, sentences, servers, until
from tiercel.compose.guard import GuardedProcess, Launch
from tiercel.workers.config import Settings, child_environment, python_path

_QUEUE = "bench-basic"
_WARM_UP_S = 10.0
_WITHIN_S = 240.0
_GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Standby:
    first_ack_s: float
    # CPU time of all processes, in percent of one core.
    idle_percent: float
    # CPU time by kind of process, in percent of one core.
    idle_cpu_percent: dict[str, float]

    def line(self) -> str:
        """Format the figures as a line."""
        roles = ", ".join(
            f"{role} {percent:.1f}" for role, percent in self.idle_cpu_percent.items()
        )
        return (
            f"first ack after {self.first_ack_s:.1f} s; idle: {self.idle_percent:.1f} % "
            f"of a core ({roles})"
        )


def measure(settings: Settings, seconds: float) -> Standby:
    """Start the word count as a user does, and leave it alone for ``seconds``."""
    fill(settings, _QUEUE, sentences(1))
    with tempfile.TemporaryDirectory(prefix="tiercel-bench-") as folder:
        reading = ProbeResults(Path(folder))
        environment = {
            **settings.as_environment(),
            **python_path(ROOT),
            **reading.environment(timed=False),
        }
        argv = (sys.executable, "-m", "tiercel", "run", "bench.topologies.words:basic")
        began = time.monotonic()
        process = GuardedProcess(Launch(argv=argv, env=child_environment(environment), cwd=ROOT))
        try:
            until(lambda: reading.last().acked >= 1, _WITHIN_S, "the first ack")
            first_ack_s = reading.samples()[-1].at - began
            time.sleep(_WARM_UP_S)
            before = cpu_seconds()
            since = time.monotonic()
            time.sleep(seconds)
            used = spent(before, cpu_seconds())
            elapsed = time.monotonic() - since
        finally:
            process.stop(_GRACE_S)
            clear(settings, [_QUEUE])
    # Leave out this process, which only sleeps and reads /proc.
    percent = {role: 100 * cpu / elapsed for role, cpu in used.items() if role != BENCHMARK}
    return Standby(
        first_ack_s=first_ack_s, idle_percent=sum(percent.values()), idle_cpu_percent=percent
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Seconds to the first ack, CPU time without messages."
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long to watch the idle processes"
    )
    with servers() as settings:
        found = measure(settings, parser.parse_args().seconds)
        print(found.line())
        print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
