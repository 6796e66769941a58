"""Steps 4 to 6 of docs/one-message.md: bolts run in long-lived Spark tasks.

Importing this package does not import PySpark.

Imports go one way: ``bolts`` <- ``topology`` <- ``emitting`` <- ``running`` <- ``kinds`` <-
``process`` <- ``spark``. No import runs in a ring, between files or folders, not even for types.

bolts        the contracts of bolts, and their collectors, tuples and context
topology     who subscribes to what; a grouping chooses here
running      one bolt task at work: steps and commits, the same for all bolts
kinds        the kinds of bolts, one object each
process      a process of bolt tasks
emitting     what a bolt emits, acks and fails, and the effect on the trees
logs         log records, of the user's bolts too
whereabouts  host, pid and start time of a process
reasons      why a tuple failed, in one line, with the user's line; tracebacks
database     writes rows into a database, each exactly once
state        the state of a StatefulBolt, and the stores that keep it
tracing      spans, with OpenTelemetry; called only if traces are asked for
suspects     finds the tuple that kills the process, or hangs in it
spark        all code that depends on Spark
errors       the errors that all of them raise
"""
