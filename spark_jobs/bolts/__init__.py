"""The contracts of bolts, the built-in ones, and what they are given.

context        what a bolt is told about its task
streams        the names of streams: the default one, the system's
tuples         what a bolt is given
collecting     what it emits, acks and fails with: the contracts
bolt           the contract of a bolt
arrow_bolt     the contract of a bolt over whole batches
stateful_bolt  the bolt with a state
fields         settings that each tuple answers with a field
envelope       a tuple's message, but for its body
queue_sink     the built-in bolt: into a RabbitMQ queue
database_sink  the built-in bolt: into a table of a database
"""
