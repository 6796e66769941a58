"""The contracts of bolts, the built-in ones, and what they are given.

bolt           the contract of a bolt
tuples         what it is given
arrow_bolt     the contract of a bolt over whole batches
stateful_bolt  the bolt with a state
queue_sink     the built-in bolt: into a RabbitMQ queue
"""
