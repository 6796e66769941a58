"""Publishing messages, each one confirmed by the broker; and dead letters.

publisher     publishes many messages
outlet        publishing with confirms, pipelined
copies        copies messages to the dead-letter queue, with the reason, or to a delay queue
dead_letters  shows the dead letters, puts them back, deletes them
"""
