"""Interpreter settings: garbage is collected seldom, and threads take turns often."""

from __future__ import annotations

import gc
import sys

# Objects more than before, after which Python looks for garbage; 700 by default.
_THRESHOLD = 100_000
# Seconds for which a thread may keep the others waiting; 0.005 by default.
_TURN_S = 0.0005


def freeze_startup_objects() -> None:
    """Take what there is now, imports above all, out of the collector's sight, and have it look for
    the rest less often.

    Each look walks all of pandas and pyarrow, and the thousands of tuples that are in work: a
    quarter of the time of a bolt that is given them one by one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)


def take_turns_often() -> None:
    """Let the threads of this process take turns more often than by default.

    A thread that talks to a server gives its turn away with each call of the system, and waits for
    the next one until a thread that computes has had all of its own: twice per round trip. Two bolt
    tasks in one process came to 2,100 sentences per second that way, and to 5,500 with these turns.
    """
    sys.setswitchinterval(_TURN_S)
