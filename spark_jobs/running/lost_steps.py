"""Goes on where the inbox of a bolt task has forgotten its last steps, behind them.

A server that fails over to a replica that lagged has lost the end of what it was told. Where the
ledger, or a state, lies on another server, it has heard of steps that the inbox knows nothing of,
and refuses all other work under their numbers, from this attempt and from each one after it.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from tiercel.acker.errors import BadChunkError, RedisUnavailableError
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Inbox
from tiercel.acker.inbox.records import Covered, Sender, StaleAttemptError
from tiercel.spark_jobs.running.around import Around

log = logging.getLogger(__name__)

# More steps than a server can have lost. Numbers of steps stay below 2**53.
_PASSED_OVER = 2**32


def pass_over(around: Around, sender: Sender) -> bool:
    """Go on with a step whose number no store has heard of: the next attempt begins there.

    False: the attempt is not the newest one, or Redis does not answer. A step that is found sealed
    is not repeated, for all its effects may have left; its messages are released.
    """
    ledger = around.ledger
    try:
        if ledger is not None and not ledger.fence(around.run, sender.task, sender.attempt):
            return False
        inbox = around.inboxes.open(around.run, sender.task, sender.attempt)
        last = inbox.opened.sealed or Covered(step=inbox.opened.step, ticks=inbox.opened.ticks)
        if ledger is not None:
            ledger.release(_roots_of(inbox, last))
        # A step of nothing: it is there for its number.
        ahead = Covered(step=last.step + _PASSED_OVER, ticks=last.ticks)
        for effect in (inbox.finish(last.step), inbox.seal(ahead), inbox.finish(ahead.step)):
            if not effect.perform():
                return False
    except (RedisUnavailableError, StaleAttemptError):
        return False
    log.warning(
        "the inbox of task %d has lost its last steps, as when its server fails over to a replica "
        "that lagged: the task goes on behind them, and what they did may be done twice",
        sender.task,
        extra={"event": "steps_lost"},
    )
    return True


def _roots_of(inbox: Inbox, covered: Covered) -> list[int]:
    """The roots of the entries that a step covers, all or in part."""
    roots: set[int] = set()
    for entry in inbox.read([*covered.whole, *covered.part]):
        with suppress(BadChunkError):
            roots.update(decode(entry.payload).lineage.roots.tolist())
    return sorted(roots)
