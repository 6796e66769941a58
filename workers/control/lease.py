"""The lease: the driver's seat in a topology, which says which run spout workers send to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import quote, unquote

from tiercel.spark_jobs.whereabouts import Whereabouts, unpacked
from tiercel.workers.control.contract import pack, unpack
from tiercel.workers.control.presence import Attendant, Presences, Seat

# A driver in reserve takes over when the seat has lapsed, as does a driver that is restarted after
# a kill, which may wait for its predecessor's seat.
DRIVER = Seat("driver", timedelta(seconds=3))
_NOTHING = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The note of the driver that holds the lease, about itself."""

    # Name of the driver process, drawn at its start. Each text is one word.
    driver: str
    # The run that spout workers send to; empty while none is ready.
    run: str = ""
    # Shape of the topology in this run, see ``shape_of``: spout workers of another shape send
    # nothing.
    shape: str = ""
    # The number of tasks of each bolt in this run, which spout workers send to.
    parallelism: Mapping[str, int] = field(default_factory=dict)
    # None: it did not say.
    whereabouts: Whereabouts | None = None
    # Why no executor can run bolts; empty: some can, or it is not known yet.
    trouble: str = ""


class Lease:
    """The lease of one topology. Calls are as ``Presences`` says.

    A lease is lost when it was not renewed in time, or when Redis lost its memory. A driver that
    lost it does no harm: inboxes, ledger and states belong to the run with the highest number.
    """

    def __init__(self, presences: Presences) -> None:
        self._presences = presences

    def take(self, holder: Holder) -> bool:
        """Take the lease, or renew it; False if another driver holds it."""
        return self._presences.take(DRIVER, Attendant(holder.driver, _note(holder)))

    def draw(self, driver: str) -> int | None:
        """Draw the number of a new run; None if the driver does not hold the lease.

        A run that a driver began after it lost the lease has a lower number than its successor's,
        and is refused wherever runs have numbers. A repeat draws another number.
        """
        return self._presences.draw_run(DRIVER, driver)

    def leave(self, driver: str) -> None:
        """Give up the lease. Does nothing to another driver's lease."""
        self._presences.leave(DRIVER, driver)

    def holder(self) -> Holder | None:
        """Return the driver that holds the lease now; None if there is none."""
        [found] = self._presences.look([DRIVER])
        return None if found is None else _holder(found)

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._presences.close()


def _note(holder: Holder) -> str:
    place = holder.whereabouts.packed() if holder.whereabouts else ""
    trouble = quote(holder.trouble, safe="")
    words = (holder.run, holder.shape, pack(holder.parallelism), place, trouble)
    return " ".join(word or _NOTHING for word in words)


def _holder(found: Attendant) -> Holder:
    # An older version writes fewer words, and a newer one may write more.
    words = [*found.note.split(), *[_NOTHING] * 5][:5]
    run, shape, numbers, place, trouble = ("" if word == _NOTHING else word for word in words)
    return Holder(
        driver=found.name,
        run=run,
        shape=shape,
        parallelism=unpack(numbers),
        whereabouts=unpacked(place),
        trouble=unquote(trouble),
    )
