"""The acker's answers compared with Storm's, sequence by sequence (see docs and Storm's
``Acker.java``).
"""

from __future__ import annotations

import pytest

from tests.support.ledgers import NOW, ROOT, A, B, C, failure, said, token, updates
from tiercel.acker.ledger import Applied

ACK = {"acked": [ROOT]}
OTHER_WORK = {"failed": [(ROOT, "__acker", 0, "a repeated step did other work")]}
FAIL = {"failed": [(ROOT, "bolt", 7, "boom")]}
RUN_A = token(0)
RUN_B = token(1)
RUN_AGAIN = token(2)


def init(ledger):
    assert ledger.register(1, [ROOT], [A]) == []


def ack(xor, of):
    return lambda ledger: ledger.apply(of, updates({ROOT: xor}))


def fail(ledger):
    ledger.fail([failure(ROOT)])


def reset(ledger):
    ledger.reset_timeout([ROOT])


STORM = {
    "init, ack": ([init, ack(A, RUN_A)], ACK, 0),
    "fail, init: a fail of an unknown root is ignored": ([fail, init], {}, 1),
    "init, init: Storm says ACK and loses the message": ([init, init], {}, 1),
    "init, init, ack": ([init, init, ack(A, RUN_A)], ACK, 0),
    "init, ack, ack: the same call repeated": ([init, ack(A, RUN_A), ack(A, RUN_A)], ACK, 0),
    "init, ack, ack: by another task, late": ([init, ack(A, RUN_A), ack(A, RUN_B)], ACK, 0),
    "chain, parent's ack repeated: Storm is stuck": (
        [init, ack(A ^ B, RUN_A), ack(A ^ B, RUN_A), ack(B, RUN_B)], ACK, 0
    ),
    "chain, child's ack first": ([init, ack(B, RUN_B), ack(A ^ B, RUN_A)], ACK, 0),
    "parent run twice with other children: Storm is stuck": (
        [init, ack(A ^ B, RUN_A), ack(A ^ C, RUN_A), ack(B, RUN_B), ack(C, RUN_AGAIN)],
        OTHER_WORK,
        0,
    ),
    "init, fail, ack": ([init, fail, ack(A, RUN_A)], FAIL, 0),
    "init, fail, fail": ([init, fail, fail], FAIL, 0),
    "init, ack, fail: zero came first": ([init, ack(A, RUN_A), fail], ACK, 0),
    "init, reset, ack": ([init, reset, ack(A, RUN_A)], {"reset": [ROOT], **ACK}, 0),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "outcomes", "pending"), STORM.values(), ids=STORM)
def test_the_acker_answers(ledger, feed, steps, outcomes, pending):
    for step in steps:
        step(ledger)
    assert said(feed.read(NOW)) == outcomes
    assert ledger.pending() == pending


def test_a_late_ack_is_counted_and_leaves_no_phantom(ledger):
    init(ledger)
    fail(ledger)
    assert ack(A, RUN_A)(ledger).late == 1
    assert ledger.pending() == 0


def test_the_repeated_ack_of_a_parent_is_recognised(ledger):
    init(ledger)
    assert ack(A ^ B, RUN_A)(ledger).applied is Applied.FRESH
    assert ack(A ^ B, RUN_A)(ledger).applied is Applied.REPEATED
