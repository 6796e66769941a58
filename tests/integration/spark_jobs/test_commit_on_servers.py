"""The commit of a step with effects on several servers."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.inboxes import FIRST, ONE, RUN, TWO, covering, opened, parcel, put, take
from tiercel.acker.inbox.contract import Sender, StaleAttemptError
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.ledger import Updates
from tiercel.acker.redis.scripts import RedisServers
from tiercel.spark_jobs.running.commit import Committer


def test_nothing_leaves_for_another_server_where_the_step_is_not_sealed(redis_url: str) -> None:
    """A later run has taken over the first server, but not yet the other one."""
    topology = f"commit-{uuid.uuid4().hex}"
    urls = (redis_url, f"{redis_url.rpartition('/')[0]}/1")
    with ExitStack() as exits:
        inboxes = exits.enter_context(closing(RedisInboxes(RedisServers(urls), topology)))
        first = exits.enter_context(closing(RedisInboxes(RedisServers(urls[:1]), topology)))
        inboxes.adopt(RUN, [ONE, TWO])
        inbox = opened(inboxes)
        put(inboxes, 1, parcel(b"a"), sender=FIRST)
        covered = covering(1, take(inbox))
        first.adopt("next", [ONE])
        nothing = Updates(roots=np.zeros(0, np.uint64), xors=np.zeros(0, np.uint64))
        done: Any = SimpleNamespace(
            parcels=[parcel(b"b", target=TWO)], updates=nothing, failures=[], snapshot=None
        )
        committer = Committer(
            run=RUN, sender=Sender(task=ONE, attempt=1), inbox=inbox, inboxes=inboxes, ledger=None
        )
        with pytest.raises(StaleAttemptError):
            committer.commit(covered, done, None)
        assert inboxes.figures([TWO])[TWO].tuples == 0
