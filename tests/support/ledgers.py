"""Helpers for tests of the ledger."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from tiercel.acker.ledger import Failure, Outcomes, Token, Updates

NOW = timedelta(0)
# Three edge ids. The high bits are set because a 64-bit id must never pass through a signed or a
# floating-point number.
A = 0xA111_0000_0000_0001
B = 0xB222_0000_0000_0002
C = 0x0C33_0000_0000_0003
ROOT = 0xFFEE_DDCC_BBAA_9988
OTHER = 0x0102_0304_0506_0708
THIRD = 0x8000_0000_0000_0001


def token(task: int = 0, *, step: int = 0, attempt: int = 0, run: str = "run") -> Token:
    return Token(run=run, task=task, step=step, attempt=attempt)


def updates(xors: dict[int, int] | None = None) -> Updates:
    """Return updates, sorted as the contract requires."""
    pairs = sorted((xors or {}).items())
    return Updates(
        roots=np.array([root for root, _ in pairs], np.uint64),
        xors=np.array([xor for _, xor in pairs], np.uint64),
    )


def failure(root: int, reason: str = "boom", component: str = "bolt", task: int = 7) -> Failure:
    return Failure(root=root, component=component, task=task, reason=reason)


def said(outcomes: Outcomes) -> dict[str, list]:
    """Return the outcomes that are not empty, in sorted order."""
    lists = {
        "acked": sorted(outcomes.acked),
        "failed": sorted(
            (one.root, one.component, one.task, one.reason) for one in outcomes.failed
        ),
        "released": sorted(outcomes.released),
        "reset": sorted(outcomes.reset),
        "waiting": sorted(outcomes.waiting),
    }
    return {name: found for name, found in lists.items() if found}
