"""Peers that tiercel is compared with.

consumer        one pika consumer: the limit, which only acks, and one that splits and counts inline
celery_tasks    a Celery task per sentence and one per word
dramatiq_tasks  a Dramatiq actor per sentence and one per word
celery_uneven   a Celery task that sleeps as long as its message says
words           the work on a word, which both use
"""
