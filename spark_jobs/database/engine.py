"""Connections to a database, and whether an error is the database's or a row's."""

from __future__ import annotations

import logging
from sqlite3 import SQLITE_ERROR
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from tiercel.queues.values.formats import json_text
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.logs.formatters import redact

_CONNECT_S = 10
# How long a transaction waits for another one. After that the sink reports the wait.
_LOCK_S = 10
# How long a client that died in a transaction holds its keys. Its host may have died too, so an
# idle server probes the connection.
_IDLE_S = 60
_ASKED_S = 20
_UNHEARD_MS = 30_000
NAME = "tiercel"
# PostgreSQL: transient errors. Serialization failures and deadlocks, locks that are not available,
# a server that starts, stops, has no room, cannot read its disk or may not write (the primary
# before a failover), a connection that ended.
_PASSING = ("40", "55P03", "57P", "53", "58", "08", "25006", "25P03", "57014")
# PostgreSQL: a table, column or privilege is missing.
_LACKING = ("42P01", "42703", "42501", "3F000")
# The same for SQLite, which has no codes for these errors.
_LACKING_WORDS = ("no such table", "no such column", "has no column", "readonly database")
# The name of our pools in SQLAlchemy's log. Users' pools keep their names.
_POOLS = "tiercel"
_UNREADABLE = (
    "not a database address: write postgresql://user:password@host:5432/database, with the "
    "password percent-encoded ('@' is %40)"
)
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
# Other drivers take other settings, and name their errors otherwise.
_KNOWN = {"postgresql": "psycopg", "sqlite": "pysqlite"}


def engine_of(url: str) -> Engine:
    """Return an engine, which connects when it is used.

    Raises TopologyError for an invalid address, an unsupported database, or a driver that is not
    installed.
    """
    try:
        parsed = _parsed(url)
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        kind = parsed.get_backend_name()
        _check_driver(kind, parsed.drivername)
        if kind == "postgresql":
            return _quiet(
                create_engine(
                    parsed,
                    pool_size=1,
                    max_overflow=1,
                    pool_logging_name=_POOLS,
                    hide_parameters=True,
                    json_serializer=json_text,
                    connect_args=_postgresql_settings(),
                )
            )
        if kind == "sqlite":
            return _sqlite(parsed)
    except ArgumentError as error:
        raise TopologyError(f"not a database address: {redact(str(error))}") from error
    except ModuleNotFoundError as error:
        raise TopologyError(
            f"the driver {error.name!r} is not installed: pip install 'tiercel[sql]'"
        ) from error
    raise TopologyError(
        f"DatabaseSink supports PostgreSQL and SQLite, not {kind!r}: write to other databases in a "
        "bolt of your own, and store tup.key with the rows"
    )


def _parsed(url: str) -> URL:
    """Parse the address. Errors do not show the invalid part: it may belong to the password."""
    try:
        parsed = make_url(url)
    except ValueError:  # an invalid port
        raise TopologyError(_UNREADABLE) from None
    if "@" in (parsed.host or ""):
        raise TopologyError(_UNREADABLE)
    return parsed


def _check_driver(kind: str, named: str) -> None:
    driver = named.partition("+")[2]
    if driver and kind in _KNOWN and driver != _KNOWN[kind]:
        raise TopologyError(
            f"DatabaseSink writes with the driver {_KNOWN[kind]}, not {driver!r:.50}: write the "
            f"address as {kind}://…"
        )


def passes(error: DBAPIError) -> bool:
    """Return True for an error that no row caused: the database is unavailable or busy."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    state = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING)
    # SQLite: locked, or its disk is full or gone. An invalid statement, or a value that a function
    # in a check or trigger rejects, is an OperationalError too, with the generic error code.
    return (
        isinstance(error, OperationalError)
        and not lacks(error)
        and getattr(error.orig, "sqlite_errorcode", None) != SQLITE_ERROR
    )


def lacks(error: DBAPIError) -> bool:
    """Return True for an error that all rows share: a table is changed or not writable."""
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
    """Log no traceback for a connection that is lost during a transaction.

    The pool's rollback then fails, and the pool closes the connection; the call that used the
    connection raises, and its caller explains the error.
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
    engine = create_engine(url, json_serializer=json_text, connect_args={"timeout": _LOCK_S})

    # Python's sqlite3 begins transactions implicitly, and not before a savepoint. So begin them
    # explicitly.
    @event.listens_for(engine, "connect")
    def plain(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
