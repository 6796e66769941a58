"""Opens a database. SQLAlchemy is an extra: without a database it is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiercel.spark_jobs.database.rows import WriterSettings
from tiercel.spark_jobs.errors import TopologyError

if TYPE_CHECKING:
    from tiercel.spark_jobs.database.writer import Writer


def writer_at(url: str, settings: WriterSettings, left: Sequence[int] = ()) -> Writer:
    """Return a writer, which connects when it writes, and ends what others ``left`` then.

    Raises TopologyError as ``engine_of`` does, and where SQLAlchemy is missing.
    """
    try:
        from tiercel.spark_jobs.database.engine import engine_of  # noqa: PLC0415 - an extra
        from tiercel.spark_jobs.database.writer import Writer  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise TopologyError(
            f"DatabaseSink needs {error.name}: pip install 'tiercel[sql]'"
        ) from error
    return Writer(engine_of(url), settings, left)
