"""Three processes for two cores: one of them takes the tests that wait more than they work."""

from __future__ import annotations

from collections.abc import Callable

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class Lanes(LoadFileScheduling):
    """A file at a time, as with ``--dist=loadfile``. The last process takes the files that wait as
    long as there are any, and the other processes take all others first: two files that work run
    beside one that waits.
    """

    # Tells whether the tests of a file wait more than they work.
    waits: Callable[[str], bool]

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = node is self.nodes[-1]
        mine = next((file for file in self.workqueue if self.waits(file) == waits), None)
        if mine is not None:
            self.workqueue.move_to_end(mine, last=False)
        super()._assign_work_unit(node)
