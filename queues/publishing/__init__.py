"""Messages into a queue, each one confirmed by the broker; and the dead letters.

publisher         publishes many messages
publication       one message on its way
outlet            publishing with confirms, pipelined
dead_letter_copy  a copy with the reason to the dead-letter queue
delay_copy        a copy to a delay queue, to come back later
letter_box        a dead-letter queue that is open
dead_letters      looks at the letters, puts them back, throws them away
"""
