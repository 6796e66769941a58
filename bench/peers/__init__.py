"""Peers that tiercel is compared with.

consumer        one pika consumer: the limit, which only acks, and one that splits and counts inline
celery_tasks    a Celery task per sentence and one per word
dramatiq_tasks  the same for Dramatiq
celery_uneven   a Celery task that sleeps as long as its message says
words           what a task does with a word, the same for both
"""
