"""Three processes for two cores: one of them takes the tests that wait more than they work."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.choice import waits

PROCESSES = 3


class Lanes(LoadFileScheduling):
    """A file at a time, as with ``--dist=loadfile``. The last process takes the files that wait as
    long as there are any, and the other processes take all others first: two files that work run
    beside one that waits.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_last = node is self.nodes[-1]
        mine = next((file for file in self.workqueue if waits(file) == is_last), None)
        if mine is not None:
            self.workqueue.move_to_end(mine, last=False)
        super()._assign_work_unit(node)
