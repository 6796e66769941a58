"""Steps 1 and 6: a message comes in, and is settled; and the inboxes of the bolt tasks.

spout         the contract of a spout; write your own from it
queue_spout   the built-in one: tuples from a RabbitMQ queue
formats       from a body to the values of a tuple          bodies    and back
json_text     JSON, bounded                                 decimals  exact or refused
schema        typed columns in Spark's DDL
consumer      opens and settles messages, on its own thread epoch     one channel of it
subscription  one consumer of a channel                     waiting   opened and not yet handed out
settle        which messages an ack covers
acks          when acks leave                                   retry     what to do with a failure
failures      how often each message failed                 limits    the bounds
intake        how many messages to ask for                  arguments what a queue was declared with
headers       what a message carries beside its body        frames    where pika reads them
burial        a copy with the reason to the dead letters    outlet    publishing with confirms, pipelined
link          one connection that comes back                connection, address    connecting, and errors in one line
publisher     publishes many messages                       confirms    what became of them
depths, dead_letters, declare                               what the command line does
letter_box    a dead-letter queue that is looked at
management    RabbitMQ's HTTP API
inbox         what waits for each bolt task
chunk         tuples on the wire                            errors    what all of them raise
"""

from queues.dead_letters import DeadLetter
from queues.declare import WorkQueue, declare_queue
from queues.depths import QueueDepth
from queues.publisher import Publisher
from queues.queue_spout import MessageId, QueueSpout
from queues.retry import RetryPolicy
from queues.schema import Field, Schema
from queues.spout import MsgId, Spout, SpoutCollector, SpoutContext, TaskContext

__all__ = [
    "DeadLetter",
    "Field",
    "MessageId",
    "MsgId",
    "Publisher",
    "QueueDepth",
    "QueueSpout",
    "RetryPolicy",
    "Schema",
    "Spout",
    "SpoutCollector",
    "SpoutContext",
    "TaskContext",
    "WorkQueue",
    "declare_queue",
]
