"""The price of a tuple: sentences of ten words split, words counted, fully tracked, in one process
without Spark and Redis.

    python -m bench.tuples [--sentences N] [--rounds N] [--profile BasicBolt]

The bolt tasks work as they do in a Spark task, step by step, on inboxes in memory: chunks decoded,
bolts executed, edges derived, updates folded, chunks encoded. The ledger answers at once and does
nothing. Attributes of the bolts are ``transient``: snapshots of them have a price of their own.
Times are CPU time. Figures go to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json

from bench.tuples.hot_spots import hot_spots
from bench.tuples.price import ROUNDS, SENTENCES, WORDS, figures, lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tuples", description=__doc__)
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="per round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--profile", choices=("BasicBolt", "ArrowBolt"), help="say where the time of this kind goes"
    )
    arguments = parser.parse_args()
    if arguments.profile:
        for row in hot_spots(arguments.profile, arguments.sentences, arguments.rounds):
            print(f"{row['percent']:5.1f} %  {row['calls']:>9,} calls  {row['function']}")
        return
    found = figures(arguments.sentences, arguments.rounds)
    print(
        f"{arguments.sentences:,} sentences of {WORDS} words per round, median of "
        f"{arguments.rounds}"
    )
    print(*lines(found), sep="\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
