"""Connections to a database, and whether an error is the database's or a row's."""

from __future__ import annotations

import logging
from sqlite3 import SQLITE_ERROR
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.logs.formatters import redact

_CONNECT_S = 10
# Lock timeout of a transaction. When it ends, the sink logs why it waits.
_LOCK_S = 10
# A client that died in a transaction holds its keys no longer than this. Its host may have died as
# well, which TCP keepalives of the server find out.
_IDLE_S = 60
_ASKED_S = 20
_UNHEARD_MS = 30_000
NAME = "tiercel"
# PostgreSQL: transient errors. Serialization failures, deadlocks, lock timeouts, a server that
# starts or stops, has no memory or disk space, cannot read its disk or is read-only (the primary
# before a failover), a connection that ended.
_PASSING = ("40", "55P03", "57P", "53", "58", "08", "25006", "25P03", "57014")
# PostgreSQL: a table, a column or a right is missing.
_LACKING = ("42P01", "42703", "42501", "3F000")
# SQLite has no error codes for these.
_LACKING_WORDS = ("no such table", "no such column", "has no column", "readonly database")
# Name of our connection pools in SQLAlchemy's log; pools of users keep their own names.
_POOLS = "tiercel"
_UNREADABLE = (
    "no address of a database: write postgresql://user:password@host:5432/database, with the "
    "password percent-encoded ('@' is %40)"
)
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


def engine_of(url: str) -> Engine:
    """Return an engine, which connects when it is used.

    Raises TopologyError for an invalid address, an unsupported database, or a driver that is not
    installed.
    """
    try:
        parsed = _parsed(url)
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        kind = parsed.get_backend_name()
        if kind == "postgresql":
            return _quiet(
                create_engine(
                    parsed,
                    pool_size=1,
                    max_overflow=1,
                    pool_logging_name=_POOLS,
                    hide_parameters=True,
                    connect_args=_postgresql_settings(),
                )
            )
        if kind == "sqlite":
            return _sqlite(parsed)
    except ArgumentError as error:
        raise TopologyError(f"no address of a database: {redact(str(error))}") from error
    except ModuleNotFoundError as error:
        raise TopologyError(
            f"the driver {error.name!r} is not installed: pip install 'tiercel[sql]'"
        ) from error
    raise TopologyError(
        f"DatabaseSink knows PostgreSQL and SQLite, not {kind!r}: write to others in a bolt of "
        "your own, and keep tup.key beside the rows"
    )


def _parsed(url: str) -> URL:
    """Parse the address. Errors do not quote it: the invalid part may belong to the password."""
    try:
        parsed = make_url(url)
    except ValueError:  # the port is no number
        raise TopologyError(_UNREADABLE) from None
    if "@" in (parsed.host or ""):
        raise TopologyError(_UNREADABLE)
    return parsed


def passes(error: DBAPIError) -> bool:
    """Return True for an error that no row caused: the database is unreachable or busy."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    state = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING)
    # SQLite raises OperationalError if it is locked, or its disk is full or gone, but also for a
    # statement that it cannot parse and for a value that a function in a check or trigger refuses:
    # the last two have the generic code SQLITE_ERROR.
    return (
        isinstance(error, OperationalError)
        and not lacks(error)
        and getattr(error.orig, "sqlite_errorcode", None) != SQLITE_ERROR
    )


def lacks(error: DBAPIError) -> bool:
    """Return True if a table or column is missing, or we may not write to it: no row can pass."""
    state = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_LACKING)
    return any(words in str(error.orig) for words in _LACKING_WORDS)


def words_of(error: DBAPIError) -> str:
    """Return the database's message, in one line."""
    diagnosis = getattr(error.orig, "diag", None)
    said = [getattr(diagnosis, name, None) for name in ("message_primary", "message_detail")]
    text = ": ".join(one for one in said if one) or str(error.orig)
    return redact(" ".join(text.split()))[:400]


def _quiet(engine: Engine) -> Engine:
    """Log no traceback for a connection that ends within a transaction.

    The pool's rollback fails, and the pool closes the connection; the call that used it raises, and
    its caller logs the error.
    """
    pool = type(engine.pool)
    logging.getLogger(f"{pool.__module__}.{pool.__name__}.{_POOLS}").addFilter(_is_no_reset)
    return engine


def _is_no_reset(record: logging.LogRecord) -> bool:
    return record.msg != "Exception during reset or similar"


def _postgresql_settings() -> dict[str, Any]:
    return {
        "connect_timeout": _CONNECT_S,
        "application_name": NAME,
        "keepalives_idle": _ASKED_S,
        "tcp_user_timeout": _UNHEARD_MS,
        "options": " ".join(
            [
                f"-c lock_timeout={_LOCK_S}s",
                f"-c idle_in_transaction_session_timeout={_IDLE_S}s",
                f"-c tcp_keepalives_idle={_ASKED_S}",
                f"-c tcp_user_timeout={_UNHEARD_MS}",
            ]
        ),
    }


def _sqlite(url: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _LOCK_S})

    # Python's sqlite3 begins transactions implicitly, but not before a savepoint: we begin them.
    @event.listens_for(engine, "connect")
    def plain(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
