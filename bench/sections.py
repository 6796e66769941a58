"""CPU time of a bolt's process by activity, measured inside the process.

A wrapper measures the CPU time of its thread, without the time of wrapped functions that it calls,
so no time counts twice. It costs about a microsecond per call, so only functions that are called
per step are wrapped, never per tuple: the bolt's own code, its emissions and the loop around them
are one activity.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.probe import FOLDER

PREFIX = "activity-"
EVERY_S = 0.1
# Where each function is looked up when it is called: "module:name" or "module:class.name".
ACTIVITIES: Mapping[str, tuple[str, ...]] = {
    "user code, emissions and the loop around them": ("running.step:Step.execute",),
    "state: keys, values, writes": (
        "running.states:_keys",
        "running.states:TaskStates.writing",
        "running.states:TaskStates.written",
        "state.key_value:KeyValueState.unread",
        "state.key_value:KeyValueState.open",
    ),
    "Redis client: pack, send, parse": (
        "tiercel.acker.redis.scripts:RedisServer.perform",
        "tiercel.acker.redis.scripts:RedisServer.perform_waiting",
        "tiercel.acker.redis.scripts:RedisServer.perform_in_turn",
    ),
    "decode chunks": ("running.backlog:decode",),
    "build tuples, let go of them": (
        "emitting.record:Record.receive",
        "emitting.record:Record.let_go",
    ),
    "edges, lineages, folded updates": (
        "running.step:Step._done",
        "running.step:fold",
        "running.step:join_lineages",
    ),
    "encode chunks": ("running.step:encode_parts",),
    "commit: digest, seal, append": ("running.commit:Committer.commit",),
    "counters": ("running.counting:Counting.step",),
    "take and choose the input": (
        "running.attempt:Attempt.fetch",
        "running.attempt:Attempt.first",
        "running.backlog:Backlog.take_out",
    ),
    "the rest of a step": ("running.attempt:Attempt.turn", "running.step:Step.__init__"),
}


class Activities:
    """CPU time of this process's threads by activity, without the time of nested activities."""

    def __init__(self) -> None:
        self._open = threading.local()
        self._ns: Counter[str] = Counter()

    def install(self) -> None:
        """Wrap all functions from now on."""
        for activity, functions in ACTIVITIES.items():
            for function in functions:
                owner, name = found(function)
                setattr(owner, name, self._wrapped(activity, getattr(owner, name)))

    def _wrapped(self, activity: str, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.thread_time_ns
        around = self._open

        @wraps(function)
        def wrapped(*args: Any, **options: Any) -> Any:
            outer = getattr(around, "nested", 0)
            around.nested = 0
            began = clock()
            try:
                return function(*args, **options)
            finally:
                took = clock() - began
                # Two threads may meet here; a lost addition of one step does not matter.
                self._ns[activity] += took - around.nested
                around.nested = outer + took

        return wrapped

    def write(self, folder: Path) -> None:
        """Write the totals every tenth of a second, until the process ends."""
        path = folder / f"{PREFIX}{os.getpid()}"
        while True:
            time.sleep(EVERY_S)
            path.with_suffix(".new").write_text(json.dumps(self._ns))
            path.with_suffix(".new").replace(path)


def found(function: str) -> tuple[Any, str]:
    """Return the module or class that has the function, and the function's name there."""
    module, _, name = function.partition(":")
    path = module if module.startswith("tiercel.") else f"tiercel.spark_jobs.{module}"
    owner: Any = import_module(path)
    *classes, last = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, last


_started = threading.Lock()


def start_activities() -> None:
    """Measure the activities of this process if the environment asks for it; once."""
    if FOLDER not in os.environ or not _started.acquire(blocking=False):
        return
    activities = Activities()
    activities.install()
    folder = Path(os.environ[FOLDER])
    threading.Thread(target=activities.write, args=(folder,), name="activity", daemon=True).start()
