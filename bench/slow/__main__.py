"""Slow work, for which tiercel is made.

Bolts that wait for something else, from a millisecond to ten seconds per tuple.

    python -m bench.slow [--only drain|raising|beside|curve|uneven ...] [--peers PYTHON]

``drain``    a bolt of one second per tuple, four tasks: how near the wall time comes to work /
             tasks
``raising``  the same, and one message in twenty raises the first time
``beside``   one tuple of ten seconds beside fast ones: the latency of all the others
``curve``    throughput by milliseconds per tuple and number of tasks, against tasks / time
``uneven``   latency of work of uneven length, compared with Celery; a task at half speed

The topology runs with the defaults. A run in which a message times out, is dead-lettered, or is
executed once more than it raised does not count.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from bench.rig import servers
from bench.slow.amount import RAISING, Slow
from bench.slow.beside import beside
from bench.slow.curve import curve
from bench.slow.drain import drain
from bench.slow.uneven import KINDS, half_speed, uneven


def main() -> None:
    parts = ("drain", "raising", "beside", "curve", "uneven")
    parser = argparse.ArgumentParser(prog="python -m bench.slow", description="Slow work.")
    parser.add_argument("--only", choices=parts, action="append", help="default: all")
    parser.add_argument("--peers", help="a Python that has bench/requirements.in installed")
    arguments = parser.parse_args()
    only = arguments.only or parts
    how = Slow()
    with servers() as settings:
        for raising in [n for name, n in (("drain", 0), ("raising", RAISING)) if name in only]:
            drained = drain(settings, how, raising)
            print(drained.line(), flush=True)
            print(json.dumps(asdict(drained)), flush=True)
        if "beside" in only:
            found = beside(settings, how)
            print(found.line(), flush=True)
            print(json.dumps(asdict(found)), flush=True)
        if "curve" in only:
            print(json.dumps(curve(settings, how, lambda said: print(said, flush=True))))
        if "uneven" in only:
            for kind in KINDS:
                row = uneven(settings, how, kind, arguments.peers)
                print(row.line(), flush=True)
                print(json.dumps(asdict(row)), flush=True)
            print(f"one task at half speed: {half_speed(settings, how):.2f} of the sum of speeds")


if __name__ == "__main__":
    main()
