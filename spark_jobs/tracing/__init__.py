"""OpenTelemetry: the spans of a process, and how the context of a trace travels.

Nothing here is called, and OpenTelemetry is not imported, unless ``OTEL_*`` settings ask for
traces: ``process.start`` returns None, and every caller keeps the function that it has without
traces. The settings are OpenTelemetry's own, read by its SDK.

A trace's context goes from a span to the next in the headers of a message (``traceparent``), and
from task to task as bytes behind a chunk (``acker.inbox.contexts``), only for tuples whose trace is
recorded. Spans wait in memory for a thread that sends them; when it cannot, they are dropped.

process  the beginning and the end, and what the log says of the receiver
spans    spans and their contexts, and the headers of messages
task     the spans of one bolt task
"""
