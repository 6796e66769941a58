"""The store in memory: for the test kit, and the twin in the contract's suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spark_jobs.snapshots.store import StaleSaveError


class MemorySnapshots:
    """``SnapshotStore`` within one process. One thread only."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, bytes]] = {}

    def find(self, tasks: Sequence[int], batch: int) -> dict[int, int]:
        found = {task: [each for each in self._kept.get(task, ()) if each < batch] for task in tasks}
        return {task: max(batches) for task, batches in found.items() if batches}

    def load(self, task: int, batch: int) -> bytes | None:
        return self._kept.get(task, {}).get(batch)

    def save(self, batch: int, snapshots: Mapping[int, bytes]) -> None:
        if any(each > batch for task in snapshots for each in self._kept.get(task, ())):
            raise StaleSaveError(f"micro-batch {batch} is over")
        before = self.find(list(snapshots), batch)
        for task, content in snapshots.items():
            kept = {before[task]: self._kept[task][before[task]]} if task in before else {}
            self._kept[task] = {**kept, batch: content}

    def drain(self) -> Iterator[tuple[str, bytes]]:
        kept, self._kept = self._kept, {}
        for task, batches in kept.items():
            for batch, content in batches.items():
                yield f"task {task} after micro-batch {batch}", content

    def close(self) -> None:
        """Nothing to release."""
