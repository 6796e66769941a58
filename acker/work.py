"""The work that one call brings to the ledger in its one canonical form, and its digest. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.ledger import Failure, Ids, Updates

# Characters of a failure's reason that are kept.
REASON_LENGTH = 500
# Message timeouts for which entries and feeds are kept.
LIFETIMES = 4
# The component under which the ledger itself fails roots; Storm's name for it.
LEDGER_COMPONENT = "__acker"
OTHER_WORK = "a repeated step did other work"


def conflict_of(root: int) -> Failure:
    """Return the failure of a root whose task did other work than its earlier attempt."""
    return Failure(root=root, component=LEDGER_COMPONENT, task=0, reason=OTHER_WORK)


@dataclass(frozen=True, kw_only=True, slots=True)
class RootUpdates:
    """Each root once, ascending.

    ``reasons[i]`` says which of ``failures`` fails root i; -1: none, it is updated.
    """

    roots: Ids
    xors: Ids
    reasons: NDArray[np.int64]
    failures: Sequence[Failure]

    @property
    def digest(self) -> bytes:
        """16 bytes; equal for equal work.

        Which roots fail belongs to the work, why does not: a reason that holds an address or a time
        differs between two attempts that did the same.
        """
        failed = np.packbits(self.reasons >= 0).tobytes()
        content = hashlib.blake2b(self.roots.astype("<u8").tobytes(), digest_size=16)
        content.update(self.xors.astype("<u8").tobytes())
        content.update(failed)
        return content.digest()


def canonical(updates: Updates, failures: Sequence[Failure] = ()) -> RootUpdates:
    """Sort, fold entries of one root, and let failing win over updating.

    Raises ValueError for arrays of unequal length.
    """
    roots = np.asarray(updates.roots, np.uint64)
    xors = np.asarray(updates.xors, np.uint64)
    if roots.shape != xors.shape or roots.ndim != 1:
        raise ValueError(f"updates need as many xors as roots, not {xors.shape} and {roots.shape}")
    failed = np.array([failure.root for failure in failures], np.uint64)
    if failed.size:
        xors = np.concatenate((xors, np.zeros(failed.size, np.uint64)))
        roots = np.concatenate((roots, failed))
    if not _ascending(roots):
        order = np.argsort(roots, kind="stable")
        roots, first = np.unique(roots[order], return_index=True)
        xors = np.bitwise_xor.reduceat(xors[order], first) if roots.size else xors
    reasons = np.full(roots.size, -1, np.int64)
    if failed.size:
        # Backwards, so that the first of several failures of one root stays.
        reasons[np.searchsorted(roots, failed[::-1])] = np.arange(failed.size)[::-1]
        xors = np.where(reasons >= 0, np.uint64(0), xors)
    return RootUpdates(roots=roots, xors=xors, reasons=reasons, failures=failures)


def _ascending(roots: Ids) -> bool:
    return bool(np.all(roots[1:] > roots[:-1]))
