"""Messages into a queue, each one confirmed by the broker; and the dead letters.

publisher         publishes many messages
outlet            publishing with confirms, pipelined
confirms          how much is in flight, and what is to be offered again
dead_letter_copy  a copy with the reason to the dead-letter queue
letter_box        a dead-letter queue that is open
dead_letters      looks at the letters, puts them back, throws them away
"""
