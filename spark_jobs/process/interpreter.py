"""Interpreter settings: rare garbage collection, and frequent switches between threads."""

from __future__ import annotations

import gc
import sys

# New objects after which Python collects garbage; 700 by default.
_THRESHOLD = 100_000
# Seconds for which a thread may keep the interpreter's lock; 0.005 by default.
_TURN_S = 0.0005


def freeze_startup_objects() -> None:
    """Exclude the objects that exist now, mainly imports, from garbage collection, and collect the
    others less often.

    Each collection would walk all of pandas and pyarrow and thousands of tuples in progress: a
    quarter of the time of a bolt that receives tuples one by one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)


def take_turns_often() -> None:
    """Switch between the threads of this process more often than by default.

    A thread that talks to a server releases the interpreter's lock at each system call, and gets it
    back only when a computing thread's interval is over: twice per round trip. Two bolt tasks in
    one process reached 2,100 sentences per second that way, and 5,500 with this interval.
    """
    sys.setswitchinterval(_TURN_S)
