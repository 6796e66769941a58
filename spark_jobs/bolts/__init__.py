"""The contracts of bolts, the built-in bolts, and their collectors, tuples and context.

streams        the names of streams: the default one, the system's
tuples         the tuple that a bolt is given, and settings that are one of its fields
collecting     its collectors, with which it emits, acks and fails, and its context: the contracts
bolt           the contracts of bolts without a state, of all kinds
stateful_bolt  the bolt with a state
verdicts       orders that go with a failure: never again, or not before a time
queue_sink     the built-in bolt: into a RabbitMQ queue
database_sink  the built-in bolt: into a table of a database
"""
