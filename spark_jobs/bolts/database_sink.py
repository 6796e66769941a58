"""The built-in sink that writes each tuple as a database row, once."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from tiercel.acker.ids import KEY_BYTES, Said, said_by
from tiercel.queues.nouns import lazy_kind, refuse_typos
from tiercel.spark_jobs.bolts.bolt import Bolt
from tiercel.spark_jobs.bolts.collecting import OutputCollector, TopologyContext
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.database.rows import (
    DatabaseAwayError,
    Fate,
    Outcome,
    Row,
    Write,
    WriterSettings,
)
from tiercel.spark_jobs.errors import NAME_IDENTITY, TopologyError
from tiercel.spark_jobs.reasons import reason_of

if TYPE_CHECKING:
    from tiercel.spark_jobs.database.writer import Writer

_MODES = ("insert", "upsert")
# Time between two restarts of the tuples' timeouts during a long write.
_LOOK_S = 1.0
# A write unanswered for this long is retried over a new connection: this one may be half-open.
_SILENCE_S = 60.0
_SHORTEST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0


class DatabaseSink(Bolt):
    """Writes each tuple as a row of a table in PostgreSQL or SQLite; emits nothing.

    Guarantee: a tuple is acked after the commit of the transaction that has its row. With ``once``,
    the default, a tuple that has a key (``tup.key``, see ``QueueSpout(identity=…)``) is written
    once, however often its message is delivered, even if a connection is lost during a commit: its
    key is written in the same transaction, into the table ``<table>_tiercel_keys``, which is
    created if it is missing. A tuple without a key is written at each delivery.

    A row that the database refuses fails only its own tuple, with the database's message. While the
    database is unavailable only this task waits, for at most ``patience_secs``, and resets the
    timeouts of its tuples. After that the tuples fail.
    """

    transient = frozenset({"_address", "_columns", "_held", "_url", "_writer"})

    @refuse_typos
    def __init__(  # noqa: PLR0913 - where to, what, and how
        self,
        url: str | None,
        table: str,
        *,
        fields: Sequence[str] | Mapping[str, str] = (),
        mode: str = "insert",
        write: Callable[[Any, Sequence[Tuple]], None] | None = None,
        once: bool = True,
        once_retention: timedelta = timedelta(days=7),
        patience_secs: float = 600.0,
    ) -> None:
        """``url`` is SQLAlchemy's, such as ``postgresql://user:password@host/name``; None:
        ``config["database_url"]``. ``fields`` are the fields to write, by default all, into columns
        of the same names; a mapping of fields to columns gives other names.

        ``mode`` is "insert" or "upsert", by the table's primary key. ``write`` replaces both: it is
        called with the open transaction (a SQLAlchemy connection) and the tuples that were not
        written before. It must neither commit nor roll back, but may use ``begin_nested``; if it
        raises, it is called again with each half of the tuples. ``once_retention`` is how long keys
        are remembered. Raises TopologyError.
        """
        _check(table, fields, patience_secs, once_retention)
        _check_function(write)
        if mode not in _MODES or (write is not None and mode != "insert"):
            raise TopologyError(
                f'DatabaseSink takes mode "insert" or "upsert", or a function; not {mode!r:.50}'
            )
        self._url = url
        self._table = table
        self._fields = fields
        self._mode = mode
        self._write = write
        self.once = once
        self.once_retention = once_retention
        self._patience_s = float(patience_secs)
        self._held: list[tuple[Tuple, Row]] = []
        if url is not None:
            writer_at(url, self._settings()).close()  # a wrong one fails here, not in a task

    @property
    def needed_fields(self) -> frozenset[str]:
        """The fields that every tuple must have."""
        return frozenset(self._fields)

    @property
    def table(self) -> str:
        """The table that the sink writes to."""
        return self._table

    def at(self, url: str) -> DatabaseSink:
        """Return this sink with another database."""
        moved = copy.copy(self)
        moved._url = url  # noqa: SLF001 - one of its own kind
        return moved

    def columns_of(self, fields: Sequence[str]) -> dict[str, str]:
        """Return the columns to write for a stream with these fields, each with its field."""
        wanted = self._fields or fields
        named = wanted if isinstance(wanted, Mapping) else {field: field for field in wanted}
        return {column: field for field, column in named.items()}

    def row_of(self, tup: Tuple, columns: Mapping[str, str]) -> Row:
        """Return a tuple's row. Raises KeyError if the tuple lacks a field."""
        values = {column: tup[field] for column, field in columns.items()}
        lanes = tup.lanes if self.once else None
        if lanes is None:
            return Row(key=None, said=Said(), values=values, item=tup)
        return Row(key=lanes[:KEY_BYTES], said=said_by(lanes), values=values, item=tup)

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Check the address; the first tuple connects. Raises TopologyError."""
        self._held = []
        url = self._url or config.get("database_url")
        if not url:
            raise TopologyError(
                f"{context.component!r} writes to a database, and no address is given: give it "
                'in DatabaseSink(url, …), or set config={"database_url": …}'
            )
        self._address = str(url)
        # Fields of a stream to their ``columns_of``.
        self._columns: dict[Sequence[str], dict[str, str]] = {}
        self._writer: Writer | None = None
        # Sessions at the server of one that was given up.
        self._left: list[int] = []

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        """Keep the tuple until ``flush``; one without a field fails here. A tick writes nothing."""
        if tup.is_tick:
            collector.ack(tup)
            return
        self._held.append((tup, self._row(tup)))

    def flush(self, collector: OutputCollector) -> None:
        """Write the rows in one transaction, and ack or fail each tuple when it is committed."""
        rows = [row for _, row in self._held]
        held = [tup for tup, _ in self._held]
        self._held = []
        if not held:
            return
        try:
            outcomes = self._written(rows, held, collector)
        except Exception as error:  # noqa: BLE001 - a wrong table, or a user's function
            collector.report_error(error)
            for tup in held:
                collector.fail(tup, error)
            return
        self._doubt(held, outcomes, collector)
        reported = set()
        for tup, outcome in zip(held, outcomes, strict=True):
            if outcome.fate in {Fate.WRITTEN, Fate.REPEATED}:
                collector.ack(tup)
                continue
            if outcome.reason not in reported:
                reported.add(outcome.reason)
                collector.report_error(outcome.reason)
            collector.fail(tup, outcome.reason)

    def cleanup(self) -> None:
        """Close the connections."""
        if self._writer is not None:
            self._writer.close()

    def _doubt(
        self, held: Sequence[Tuple], outcomes: Sequence[Outcome], collector: OutputCollector
    ) -> None:
        """Warn about messages without a key, or older than the remembered keys."""
        if not self.once:
            return
        written = [
            tup for tup, outcome in zip(held, outcomes, strict=True) if outcome.fate is Fate.WRITTEN
        ]
        if any(tup.lanes is None for tup in written):
            collector.report_error(
                "a message without an identity was written, and will be written again if it is "
                f"delivered again: {NAME_IDENTITY}"
            )
        oldest = time.time() - self.once_retention.total_seconds()
        old = sum(0 < said_by(tup.lanes).since < oldest for tup in written if tup.lanes is not None)
        if old:
            collector.report_error(
                f"{old} messages older than the remembered keys (once_retention = "
                f"{self.once_retention}) were written: they may have been written before"
            )

    def _written(
        self, rows: Sequence[Row], held: Sequence[Tuple], collector: OutputCollector
    ) -> list[Outcome]:
        """Write; return the outcome of each row. Waits while the database is unavailable."""
        until = time.monotonic() + self._patience_s
        wait_s = _SHORTEST_WAIT_S
        said = False
        while True:
            try:
                return self._in_time(rows, until, held, collector)
            except DatabaseAwayError as error:
                if time.monotonic() + wait_s > until:
                    raise DatabaseAwayError(
                        f"the database was unavailable for {self._patience_s:.0f} s: {error}"
                    ) from error
                if not said:
                    collector.report_error(f"waiting for the database: {reason_of(error)}")
                said = True
            _hold(held, collector)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _in_time(
        self, rows: Sequence[Row], until: float, held: Sequence[Tuple], collector: OutputCollector
    ) -> list[Outcome]:
        """Write in another thread, because this one must reset timeouts while the server hangs."""
        if self._writer is None:
            self._writer = writer_at(self._address, self._settings(), self._left)
        began = time.monotonic()
        writing = _begun(partial(self._writer.write, rows))
        while not wait([writing], _LOOK_S).done:
            if time.monotonic() > min(until, began + _SILENCE_S):
                # It may still commit; then the next attempt finds the keys.
                self._left = self._writer.abandon()
                self._writer = None
                raise DatabaseAwayError("it does not answer")
            _hold(held, collector)
        return writing.result()

    def _settings(self) -> WriterSettings:
        return WriterSettings(
            table=self._table,
            upsert=self._mode == "upsert",
            write=None if self._write is None else _each_on_copies(self._write),
            retention_s=int(self.once_retention.total_seconds()) if self.once else None,
        )

    def _row(self, tup: Tuple) -> Row:
        columns = self._columns.get(tup.fields)
        if columns is None:
            columns = self._columns[tup.fields] = self.columns_of(tup.fields)
        return self.row_of(tup, columns)


def _check(table: str, fields: object, patience_secs: float, once_retention: object) -> None:
    if not isinstance(table, str) or not table:
        raise TopologyError(f"DatabaseSink needs the name of a table, not {table!r:.50}")
    if isinstance(fields, str):
        raise TopologyError(f"DatabaseSink takes a list of fields: write fields=[{fields!r}]")
    columns = list(fields.values()) if isinstance(fields, Mapping) else []
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise TopologyError(
            f"DatabaseSink: fields has the column {twice[0]!r:.50} twice, and one of its values "
            "would be lost; name a column for each field"
        )
    if not isinstance(patience_secs, (int, float)) or not patience_secs > 0:
        raise TopologyError(
            f"DatabaseSink needs a patience_secs greater than 0, not {patience_secs!r:.50}"
        )
    if not isinstance(once_retention, timedelta):
        raise TopologyError(
            f"DatabaseSink needs a timedelta as once_retention, not {once_retention!r:.50}"
        )


def _each_on_copies(write: Write) -> Write:
    """Return the function with copies of the tuples in each call: it may change lists and mappings
    in them, and be called again.
    """
    return lambda connection, tuples: write(connection, [_copy_of(tup) for tup in tuples])


def _copy_of(tup: Tuple) -> Tuple:
    return Tuple(copy.deepcopy(tup.values), tup.origin, tup.row, tup.lanes)


def _check_function(write: object) -> None:
    if what := lazy_kind(write):
        raise TopologyError(
            f"DatabaseSink: write is {what} and would never run: write a plain function"
        )


def _hold(held: Sequence[Tuple], collector: OutputCollector) -> None:
    for tup in held:
        collector.reset_timeout(tup)


def _begun(call: Callable[[], list[Outcome]]) -> Future[list[Outcome]]:
    """Start a call in a daemon thread."""
    future: Future[list[Outcome]] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name="database", daemon=True).start()
    return future


def writer_at(url: str, settings: WriterSettings, left: Sequence[int] = ()) -> Writer:
    """Return a writer, which connects when it writes and then ends the sessions that others
    ``left``.

    Raises TopologyError as ``engine_of`` does, and if SQLAlchemy is missing.
    """
    try:
        from tiercel.spark_jobs.database.engine import engine_of  # noqa: PLC0415 - an extra
        from tiercel.spark_jobs.database.writer import Writer  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise TopologyError(
            f"DatabaseSink needs {error.name}: pip install 'tiercel[sql]'"
        ) from error
    return Writer(engine_of(url), settings, left)
