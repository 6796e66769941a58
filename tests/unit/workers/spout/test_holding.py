from datetime import timedelta

from tiercel.workers.spout.loop import Holding, Patience
from tiercel.workers.spout.outbox import Attendance

DRIVER = Attendance.DRIVER
NO_DRIVER = Attendance.NO_DRIVER
REDIS_AWAY = Attendance.REDIS_AWAY


class Told:
    """A holding, and its last message."""

    def __init__(self, patience=None):
        self.holding = Holding(patience or Patience())
        self.last = None

    def at(self, now, attendance=DRIVER, *, bound=10, active=True):
        said = self.holding.look(now, bound=bound, active=active, attendance=attendance)
        self.last = self.last if said is None else said
        return said


def test_the_bound_is_told_once():
    told = Told()
    assert [told.at(0), told.at(1), told.at(2)] == [10, None, None]


def test_it_is_told_when_it_grows_or_more_than_halves():
    told = Told()
    assert [told.at(0, bound=bound) for bound in (10, 9, 5, 4, 3, 4, 8)] == [
        10,
        None,
        None,
        4,
        None,
        None,
        8,
    ]


def test_deactivated_a_spout_holds_nothing():
    told = Told()
    assert [told.at(0), told.at(1, active=False), told.at(2, active=False), told.at(3)] == [
        10,
        0,
        None,
        10,
    ]


def test_without_a_driver_a_spout_holds_on_for_a_minute_and_with_redis_away_for_five():
    for attendance, seconds in ((NO_DRIVER, 60), (REDIS_AWAY, 300)):
        told = Told()
        told.at(0)
        told.at(100, attendance)
        told.at(99.9 + seconds, attendance)
        assert told.last == 10
        assert told.at(100 + seconds, attendance) == 0
        assert told.at(100_000, attendance) is None
        assert told.at(100_001) == 10


def test_the_time_runs_on_from_one_absence_to_the_other():
    told = Told()
    told.at(-1)
    told.at(0, REDIS_AWAY)
    assert told.at(50, NO_DRIVER) is None
    assert told.at(70, NO_DRIVER) == 0


def test_a_worker_that_never_saw_a_driver_takes_nothing():
    """Spark needs time to start, and messages taken before would be given back."""
    told = Told(Patience(without_driver=timedelta(seconds=60)))
    assert [told.at(0, REDIS_AWAY), told.at(5, NO_DRIVER), told.at(65, NO_DRIVER)] == [
        None,
        None,
        None,
    ]
    assert told.at(300) == 10
