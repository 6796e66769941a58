"""The case book: the tuples that bolt tasks were executing when their processes died, and how
often.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tiercel.acker.ledger import Failure

# One death may have any cause, such as an operator's kill or the kernel's out-of-memory killer. Two
# deaths on one tuple are the tuple's fault.
DEATHS = 2
_KEPT = 100
REASON = f"the Python process died while it executed this tuple, {DEATHS} times in a row"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """Work of a process: the execution of a tuple in some trees, or a ``flush``."""

    component: str
    task: int
    # The tuple's seed, the same at every attempt; None: the flush.
    seed: int | None
    roots: tuple[int, ...] = ()
    deaths: int = 0

    @property
    def guilty(self) -> bool:
        return self.seed is not None and self.deaths >= DEATHS

    def same(self, other: Suspect) -> bool:
        return (self.task, self.seed) == (other.task, other.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Notes that the attempts at one bolt task have left."""

    # Work of the latest process. If another process finds it, the latest one died during it.
    doing: Suspect | None = None
    suspects: tuple[Suspect, ...] = ()

    def after_death(self) -> Case:
        """The case with which the next process begins; only the latest suspects are kept."""
        if self.doing is None:
            return self
        before = next((each for each in self.suspects if each.same(self.doing)), self.doing)
        others = tuple(each for each in self.suspects if not each.same(self.doing))
        return Case(suspects=(*others[1 - _KEPT :], replace(before, deaths=before.deaths + 1)))

    @property
    def guilty(self) -> frozenset[int]:
        """The roots of the guilty tuples."""
        return frozenset(root for each in self.suspects if each.guilty for root in each.roots)

    @property
    def failures(self) -> list[Failure]:
        """One failure for each tree of the guilty tuples."""
        return [
            Failure(root=root, component=each.component, task=each.task, reason=REASON)
            for each in self.suspects
            if each.guilty
            for root in each.roots
        ]


def encode_suspects(suspects: Sequence[Suspect]) -> bytes:
    """Encode suspects as JSON."""
    return json.dumps([asdict(suspect) for suspect in suspects]).encode()


def decode_suspects(content: bytes) -> tuple[Suspect, ...]:
    """Decode suspects from ``encode_suspects``; raises ValueError for anything else."""
    try:
        return tuple(_suspect(**fields) for fields in json.loads(content))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no suspects: {error}") from error


def _suspect(
    *, component: object, task: object, seed: object, roots: object, deaths: object
) -> Suspect:
    """Return a suspect with exactly these fields.

    Raises TypeError for missing or other fields, and for values of other types.
    """
    if not isinstance(component, str) or not isinstance(roots, list) or not all(map(_is_id, roots)):
        raise TypeError("a component and the roots of its tuple are missing")
    if (
        not isinstance(task, int)
        or not isinstance(deaths, int)
        or not (seed is None or isinstance(seed, int))
    ):
        raise TypeError("a task, a seed or a count of deaths is no number")
    return Suspect(component=component, task=task, seed=seed, roots=tuple(roots), deaths=deaths)


def _is_id(root: object) -> bool:
    return isinstance(root, int) and 0 <= root < 1 << 64
