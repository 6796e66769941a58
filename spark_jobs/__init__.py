"""Steps 3 to 5: bolts run in long-lived Spark tasks. Importing this does not import PySpark.

builder          puts a topology together, and checks it
config           a topology's settings
topology         what it makes: components, tasks, subscriptions
shape            what its processes must agree on
grouping         which task receives a tuple
batch_grouping   groupings without a Python loop
hashing          of keys, the same everywhere
bolt             the contract of a bolt
arrow_bolt       the contract of a bolt over whole batches
stateful_bolt    the bolt with a state
queue_sink       the built-in bolt: into a RabbitMQ queue
system           the names of what the system emits
tuples           what a bolt is given
collector        what it emits, acks and fails with
arrow_collector  what an ArrowBolt emits and fails with
execution        one bolt over the input of one step
arrow_run        one ArrowBolt over it
reasons          why a tuple failed, in one line
outputs          where emissions are recorded
arrow_columns    what an ArrowBolt emitted, as the stream's types
arrow_anchors    what that is anchored to
departures       what leaves a step, and what stays behind
fold             what a step did to the trees, in numpy
counts           what is counted of it
emission         the spout's side of emitting
running          bolt tasks at work: steps and commits
state            what the state of a StatefulBolt is, and the stores that keep it
task_states      what a step does around a state
snapshots        what outlives the process of a bolt
suspects         who ended the process, or hangs in it
spacing          how long a worker waits for company
interpreter      how seldom it collects garbage, how often its threads take turns
spark            all that knows Spark
shipping         code for executors that lack it
errors           what all of them raise
testing          the test kit
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
