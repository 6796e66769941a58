"""Messages into a queue, each one confirmed by the broker; and the dead letters.

publisher         publishes many messages
outlet            publishing with confirms, pipelined
publication       one message until it is confirmed
confirms          what became of them
dead_letter_copy  a copy with the reason to the dead-letter queue
letter_box        a dead-letter queue that is open
dead_letters      looks at the letters, puts them back, throws them away
"""
