"""The spans of one bolt task: one per traced tuple, or one for the tuples of a step.

The id of a bolt's span is derived from its tuple and its step, because a repeated step must emit
the same bytes: the contexts of its emissions name that span.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tiercel.acker.ids import mix
from tiercel.acker.inbox.chunk import Lineage
from tiercel.acker.inbox.contexts import Contexts, rows_with
from tiercel.acker.ledger import Failure, Ids
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.tracing.spans import SECONDS, SpanContext, Tracing

if TYPE_CHECKING:  # an extra, and it takes 0.2 s to import
    from opentelemetry.trace import Span


# A bolt's ``Execution`` (running.step); only two of its functions are replaced.
E = TypeVar("E")
# The event for each exception that is a verdict and no error.
Verdicts = Mapping[type[BaseException], str]
# Most contexts of tuples to be called, above the number of tuples that wait.
_MOST_FED = 20_000
# Tells the ids of spans apart from other numbers that are derived from a seed.
_SPANS = 0x7370616E


def span_id_of(seed: int, salt: int) -> int:
    """Return the id of the span that executes a tuple, the same in a repeated step."""
    return mix(seed ^ salt ^ _SPANS) or 1


class TaskTracing:
    """The spans of one bolt task. Only ``around_call`` has functions for other threads."""

    def __init__(self, tracing: Tracing, component: str, task: int) -> None:
        self.tracing = tracing
        self._component = component
        self._attributes = {"tiercel.component": component, "tiercel.task": task}
        # The spans of the step that is being executed.
        self._spans: StepSpans | None = None
        # Contexts of the latest tuples to be called, and of the tuples of the current step.
        self._fed: dict[int, tuple[bytes, ...]] = {}
        self._of_step: Contexts = {}
        # Seeds of the latest tuples that were called.
        self._begun: set[int] = set()
        self._verdicts: Verdicts = {}

    def traced(self, execution: E, *, calls: bool = False) -> E:
        """Return an ``Execution`` that records spans for tuples with a context.

        ``calls``: the calls have spans of their own (``around_call``) and begin before the step.
        """
        given: Any = execution

        def execute(bolt: Any, step: Any) -> bool:
            if step.lineage.contexts is None:
                done: bool = given.execute(bolt, step)
                return done
            return self._executed(given, bolt, step, calls=calls)

        def departures(record: Any, lineage: Lineage, seeds: Ids) -> Any:
            leaving = given.departures(record, lineage, seeds)
            if self._spans is not None:
                # Only now is each failure known: a value of a wrong type is found as it leaves.
                spans, self._spans = self._spans, None
                spans.finish(record)
            return leaving

        return cast("E", replace(given, execute=execute, departures=departures))

    def _executed(self, execution: Any, bolt: Any, step: Any, *, calls: bool) -> bool:
        lineage = step.lineage
        if calls:
            self._of_step = lineage.contexts
        salt = 0 if calls else step.record.salt
        spans = StepSpans(self, lineage, step.record.held, salt, at_once=execution.at_once)
        step.lineage = replace(lineage, contexts=spans.contexts)
        if not calls:
            self._spans = step.spans = spans
        with spans.together() if execution.at_once else nullcontext():
            done: bool = execution.execute(bolt, step)
        return done

    def feed(self, contexts: Contexts | None) -> None:
        """Keep the contexts of tuples that are to be called."""
        if contexts is not None:
            self._fed.update(contexts)
            # A tuple may be called again, so the oldest are dropped instead of those called.
            for seed in list(islice(self._fed, max(0, len(self._fed) - _MOST_FED))):
                del self._fed[seed]
                self._begun.discard(seed)

    def around_call(
        self, execute: Callable[..., Any], *, awaits: bool, verdicts: Verdicts
    ) -> Callable[[Any, Any], Awaitable[object] | None]:
        """Return ``execute`` of a bolt with concurrent calls, with a span for each traced tuple."""
        self._verdicts = verdicts

        def call(tup: Any, collector: Any) -> Awaitable[object] | None:
            parents = self._fed.get(tup.seed) or self._of_step.get(tup.seed)
            if parents is None:
                made: Awaitable[object] | None = execute(tup, collector)
                return made
            if awaits:
                return self._awaited(execute, tup, collector, parents)
            with self._called(tup.seed, parents):
                return cast("Awaitable[object] | None", execute(tup, collector))

        return call

    async def _awaited(
        self, execute: Callable[..., Any], tup: Any, collector: Any, parents: tuple[bytes, ...]
    ) -> object:
        with self._called(tup.seed, parents):
            made = execute(tup, collector)
            return None if made is None else await made

    @contextmanager
    def _called(self, seed: int, parents: tuple[bytes, ...]) -> Iterator[None]:
        span = self.start(parents, self._id_of_call(seed))
        try:
            with self.tracing.current(span):
                yield
        except BaseException as error:
            event = self._verdicts.get(type(error))
            seconds = getattr(error, "seconds", None)
            if event is None:
                self.tracing.raised(span, error)
                self.tracing.fail(span, reason_of(error), "failed")
            else:
                more = {} if seconds is None else {SECONDS: seconds}
                self.tracing.fail(span, str(error), event, **more)
            raise
        finally:
            span.end()

    def _id_of_call(self, seed: int) -> int:
        """Return the id of the span of a call; 0, which is a random one, for a retry.

        Receivers take spans with one id for one span. The emissions of a retry name the first call,
        because a process that repeats the step does not know how often the tuple was called.
        """
        if seed in self._begun:
            return 0
        if seed in self._fed:
            self._begun.add(seed)
        return span_id_of(seed, 0)

    def start(
        self, parents: Sequence[bytes], span_id: int, *, verb: str = "execute", tuples: int = 0
    ) -> Span:
        """Start the span of a call."""
        known = [each for each in map(SpanContext.of, parents) if each is not None]
        attributes = self._attributes
        if tuples:
            attributes = {**attributes, "messaging.batch.message_count": tuples}
        name = f"{verb} {self._component}"
        return self.tracing.start(name, "INTERNAL", known, attributes, span_id=span_id)


class StepSpans:
    """The spans of one step: one per traced tuple, or one for all if the bolt gets them at once."""

    def __init__(
        self, task: TaskTracing, lineage: Lineage, held: int, salt: int, *, at_once: bool
    ) -> None:
        """``held`` is the number of tuples of earlier steps, which come first."""
        self._task = task
        self._salt = salt
        self._at_once = at_once
        self._tuples = len(lineage.counts) - held
        parents = lineage.contexts or {}
        rows = rows_with(parents, lineage.seeds)
        # Of each traced tuple of the input, by row.
        self._seeds = {row: int(lineage.seeds[row]) for row in rows.tolist() if row >= held}
        self._parents = {row: parents[seed] for row, seed in self._seeds.items()}
        # By row: the span, and its end.
        self._ended: dict[int, tuple[Span, int]] = {}
        self.contexts: Contexts = {**parents, **self._own()}

    def _own(self) -> dict[int, tuple[bytes, ...]]:
        """Return the contexts of the spans of this step, which the emissions to come will have.

        The span of a batch is in one trace. Emissions of tuples of other traces keep the context
        that their tuple came with: a span's parent is of the same trace.
        """
        own: dict[int, tuple[bytes, ...]] = {}
        batch: SpanContext | None = None
        for row, seed in self._seeds.items():
            parent = SpanContext.of(self._parents[row][0])
            if parent is None:
                continue
            span = parent._replace(span_id=span_id_of(seed, self._salt))
            if self._at_once:
                batch = batch or span
                if batch.trace_id != parent.trace_id:
                    continue
                span = batch
            own[seed] = (span.packed(),)
        return own

    def around(self, execute: Callable[..., object]) -> Callable[..., object]:
        """Return ``execute`` with a span for each traced tuple."""
        parents_of = self._parents.get

        @wraps(execute)
        def traced(tup: Any, collector: Any) -> object:
            parents = parents_of(tup.row)
            if parents is None:
                return execute(tup, collector)
            span = self._task.start(parents, span_id_of(self._seeds[tup.row], self._salt))
            try:
                with self._task.tracing.current(span):
                    return execute(tup, collector)
            except BaseException as error:
                self._task.tracing.raised(span, error)
                raise
            finally:
                self._ended[tup.row] = (span, time.time_ns())

        return traced

    @contextmanager
    def together(self) -> Iterator[None]:
        """Execute the step in one span, which has links to all other contexts of its tuples."""
        if not self._parents:
            yield
            return
        row = next(iter(self._parents))
        parents = [context for contexts in self._parents.values() for context in contexts]
        span_id = span_id_of(self._seeds[row], self._salt)
        span = self._task.start(parents, span_id, verb="execute_batch", tuples=self._tuples)
        with self._task.tracing.current(span):
            yield
        self._ended[row] = (span, time.time_ns())

    def finish(self, record: Any) -> None:
        """End the spans; spans of failed tuples get the reason."""
        reasons: Mapping[int, str] = record.reasons
        for row, (span, ended_ns) in self._ended.items():
            for failed in self._parents if self._at_once else (row,):
                if failed in reasons:
                    self._fail(span, record.failure(failed, 0, 0))
            span.end(ended_ns)
        self._ended.clear()

    def _fail(self, span: Span, failure: Failure) -> None:
        fail = self._task.tracing.fail
        seconds = failure.retry_after_s
        if seconds is not None:
            fail(span, failure.reason, "retry_later", **{SECONDS: seconds})
        else:
            fail(span, failure.reason, "rejected" if failure.reject else "failed")
