"""The contracts of bolts, the built-in bolts, and their collectors, tuples and context.

context        what a bolt is told about its task
streams        the names of streams: the default one, the system's
tuples         what a bolt is given
collecting     its collectors, with which it emits, acks and fails: the contracts
bolt           the contract of a bolt
arrow_bolt     the contract of a bolt over whole batches
batch_bolt     the contract of a bolt over several tuples at a time
async_bolt     the contract of a bolt that waits, many tuples at once
stateful_bolt  the bolt with a state
kinds          all kinds of bolts, in one type
reject         a bolt says that a message can never be processed
retry_later    a bolt says when a message is to come again
verdicts       both, as a failure carries them
fields         settings that each tuple answers with a field
envelope       a tuple's message, but for its body
queue_sink     the built-in bolt: into a RabbitMQ queue
database_sink  the built-in bolt: into a table of a database
"""
