"""Messages into a queue, each one confirmed by the broker; and the dead letters.

publisher     publishes many messages
outlet        publishing with confirms, pipelined
copies        a copy with the reason to the dead-letter queue, or to a delay queue
dead_letters  looks at the letters, puts them back, throws them away
"""
