"""Executions of the two bolts of ``numbered``, by step, and the ones that a killed process had in
hand.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Variable that names the folder of the effects, which are the executions of the second bolt.
EFFECTS = "TIERCEL_TEST_EFFECTS"


def first_folder(effects: Path) -> Path:
    """Return the folder with the executions of the first bolt."""
    return effects.with_name(effects.name + "-first")


class Lines:
    """Executions of one bolt task in one process, as lines of number, part, step and time.

    Used by the bolt itself.
    """

    def __init__(self, folder: Path, task: int) -> None:
        self._folder = folder
        self._task = task
        self._step = 0
        self._lines: list[str] = []

    def add(self, number: int, part: int) -> None:
        self._lines.append(f"{number} {part}")

    def write(self) -> None:
        """Write the lines at the end of the step, before its commit."""
        # Only the executing process knows its id: this object may have been made before the fork.
        path = self._folder / f"{Path('/proc/self').readlink()}-{self._task}"
        end = f" {self._step} {time.time():.3f}\n"
        with path.open("a") as file:
            file.writelines(line + end for line in self._lines)
        self._lines.clear()
        self._step += 1


class Execution(NamedTuple):
    number: int
    part: int
    step: int
    at: float


class Repeats:
    """Numbers executed more than once, and numbers that dead processes had in hand, in their tasks'
    last steps.

    A task begins a step when the previous one is committed. So any other repeated number had been
    committed.
    """

    def __init__(self, effects: Path, numbers: range) -> None:
        """``numbers`` are the numbers of the examined messages."""
        first, first_in_hand = _executed(first_folder(effects), numbers)
        second, second_in_hand = _executed(effects, numbers)
        # If a repeated step of the first bolt does other work, all its messages fail and come
        # again, with all their parts.
        from_the_start = {number for number, _ in first_in_hand}
        # (number, part) that the second bolt executed more than once.
        self.repeated = {key for key, times in second.items() if len(times) > 1}
        # Numbers that the first bolt executed more than once.
        self.first_repeated = {number for (number, _), times in first.items() if len(times) > 1}
        self.strays = {
            number for number, part in self.repeated if (number, part) not in second_in_hand
        }
        # Numbers executed again although no dead process had them in hand.
        self.strays = (self.strays | self.first_repeated) - from_the_start
        self._times = [*first.values(), *second.values()]

    def again_at(self, struck_at: float) -> float | None:
        """Return the time of the first repeated execution; None if nothing was repeated."""
        return min(
            (max(times) for times in self._times if min(times) <= struck_at < max(times)),
            default=None,
        )


def _executed(
    folder: Path, numbers: range
) -> tuple[dict[tuple[int, int], list[float]], set[tuple[int, int]]]:
    """Return the times of each (number, part), and the parts that dead processes had in hand."""
    times: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    in_hand: set[tuple[int, int]] = set()
    for path in folder.iterdir():
        found = list(_read(path))
        for one in found:
            if one.number in numbers:
                times[one.number, one.part].append(one.at)
        if found and not lives(int(path.name.partition("-")[0])):
            in_hand |= {(one.number, one.part) for one in found if one.step == found[-1].step}
    return times, in_hand


def lives(pid: int) -> bool:
    """Tell if a process still executes; one that has ended may wait for its parent to notice."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _read(path: Path) -> Iterator[Execution]:
    # A line that is still being written has no end.
    for line in path.read_text().split("\n")[:-1]:
        number, part, step, at = line.split()
        yield Execution(int(number), int(part), int(step), float(at))
