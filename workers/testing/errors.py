"""Errors that the test kit raises.

SparkJobsError
└── LocalClusterError      a test asks for what the cluster does not have, or the topology does
                           not come to rest
"""

from __future__ import annotations

from collections.abc import Iterable

from tiercel.spark_jobs.errors import SparkJobsError


class LocalClusterError(SparkJobsError):
    """The message says what there is, or what still moves, and what to change in the test."""


def absent(kind: str, name: str, there: Iterable[str]) -> LocalClusterError:
    """Return the error for a spout or a bolt that is not ``there``."""
    return LocalClusterError(f"there is no {kind} {name!r}; the {kind}s are {', '.join(there)}")
