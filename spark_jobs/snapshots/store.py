"""The contract of the store of snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


class StaleSaveError(RuntimeError):
    """A task of an old micro-batch goes on although a newer one has ended: what it did counts for nothing."""


class SnapshotStore(Protocol):
    """Snapshots of the bolt tasks of one run, each named by the micro-batch after which it was taken.

    Guarantee: in micro-batch n every attempt at a task, in any process, finds what the task was before n. So the newest
    snapshot and the one before it are kept. Losing all of them is safe: the messages of held tuples time out and come again.
    """

    def find(self, tasks: Sequence[int], batch: int) -> dict[int, int]:
        """The micro-batch of each task's newest snapshot from before ``batch``; tasks without one are left out."""
        ...

    def load(self, task: int, batch: int) -> bytes | None:
        """The snapshot of a task that ``find`` told of; None if it was lost since."""
        ...

    def save(self, batch: int, snapshots: Mapping[int, bytes]) -> None:
        """Keep these, all or none; a repeat replaces what an earlier attempt saved in the same micro-batch.

        Raises StaleSaveError when one of the tasks has a snapshot of a later micro-batch.
        """
        ...

    def drain(self) -> Iterator[tuple[str, bytes]]:
        """Take out all snapshots, those of other runs of the topology too: for a driver that begins a run, or ends one.

        Each comes with a name, for people, of where it was. It is given as it lies there: another version of tiercel may have
        written it, or a stranger.
        """
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...
