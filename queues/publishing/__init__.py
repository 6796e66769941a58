"""Publishing messages, each one confirmed by the broker; and dead letters.

publisher     publishes many messages
outlet        publishing with confirms, pipelined
copies        a copy with the reason to the dead-letter queue, or to a delay queue
dead_letters  shows the dead letters, puts them back, deletes them
"""
