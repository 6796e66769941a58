"""Steps 4 to 6 of docs/one-message.md: bolts run in long-lived Spark tasks.

Importing this does not import PySpark.

Imports go one way: ``bolts`` <- ``topology`` <- ``emitting`` <- ``running`` <- ``kinds`` <-
``process`` <- ``spark``. No file and no folder imports one that imports it, not even for its types.

bolts        the contracts of bolts, and their collectors, tuples and context
topology     who subscribes to what; a grouping chooses here
running      one bolt task at work: steps and commits, the same for all bolts
kinds        the kinds of bolts, one object each
process      a process of bolt tasks
emitting     what a bolt emits, acks and fails, and what that does to the trees
logs         log records, of the user's bolts too
whereabouts  where a process runs, and since when
reasons      why a tuple failed, in one line, with the user's line; tracebacks
database     rows into a database, each once
state        what the state of a StatefulBolt is, and the stores that keep it
suspects     which tuple ended the process, or hangs in it
spark        all that knows Spark
errors       what all of them raise
"""
