"""Steps 3 to 5: bolts run as Spark tasks. Importing this does not import PySpark.

builder     puts a topology together, and checks it     topology   what it makes: components, tasks, subscriptions
config      a topology's settings                       hashing    of keys, the same everywhere
bolt        the contract of a bolt                      tuples     what it is given
grouping    which task receives a tuple                 collector  what it emits, acks and fails with
levels      the topology cut into Spark stages          outputs    where emissions are recorded
runner      one level of a micro-batch, plain Python    execution  one bolt in it
counts      what is counted of it
instances   the bolts' working copies                   departures what leaves it, and what stays behind
snapshots   the copies between two micro-batches        reasons    why a tuple failed, in one line
queue_sink  the built-in bolt: into a RabbitMQ queue    stateful_bolt  the bolt with a state
state       what that is, and the stores that keep it   task_states    what a micro-batch does around it
suspects    who ended the process, or hangs in it       fold       what a task did to the trees, in numpy
arrow_bolt  the contract of a bolt over whole batches   arrow_collector  what that emits and fails with
arrow_columns  what it emitted, as the stream's types   arrow_anchors  what that is anchored to
arrow_run   one ArrowBolt in a micro-batch              batch_grouping  groupings without a Python loop
emission    the spout's side of emitting                job        what travels to the Spark tasks
ticks       tick tuples                                 system     the names of what the system emits
source      the relay as a Spark source                 query      the Structured Streaming query
session     the Spark session                           errors     what all of them raise
shipping    code for executors that lack it             garbage    how seldom it is collected
testing     the test kit                                shape      what its processes must agree on
patience    waiting for Redis within a Spark task       class_archive  a JVM that starts faster
relays      the relay, with acker's client and errors   arrivals   chunks that this topology can have written
python_start  and Python processes that do
"""

from spark_jobs.arrow_bolt import ArrowBolt
from spark_jobs.arrow_collector import ArrowCollector
from spark_jobs.bolt import BasicBolt, Bolt, TopologyContext
from spark_jobs.builder import TopologyBuilder
from spark_jobs.collector import BasicCollector, OutputCollector
from spark_jobs.config import Config
from spark_jobs.errors import SparkJobsError, TopologyError, TupleError
from spark_jobs.grouping import CustomGrouping, Grouping
from spark_jobs.queue_sink import QueueSink
from spark_jobs.state import KeyValueState
from spark_jobs.stateful_bolt import StatefulBolt
from spark_jobs.topology import Topology
from spark_jobs.tuples import Tuple

__all__ = [
    "ArrowBolt",
    "ArrowCollector",
    "BasicBolt",
    "BasicCollector",
    "Bolt",
    "Config",
    "CustomGrouping",
    "Grouping",
    "KeyValueState",
    "OutputCollector",
    "QueueSink",
    "SparkJobsError",
    "StatefulBolt",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "Tuple",
    "TupleError",
]
