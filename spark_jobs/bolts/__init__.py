"""The contracts of bolts, the built-in bolts, and their collectors, tuples and context.

streams        the names of streams: the default one, the system's
tuples         the tuple that a bolt receives, and settings that are read from its fields
collecting     the contracts of the collectors, which emit, ack and fail, and of the context
bolt           the contracts of bolts without a state, of all kinds
stateful_bolt  the bolt with a state
windowed_bolt  bolts that are called per window, and the windows
verdicts       failures that say when to retry: never, or not before a time
retry          the policy of a bolt whose task retries tuples itself
queue_sink     the built-in bolt that publishes to a RabbitMQ queue
database_sink  the built-in bolt that writes to a database table
"""
