"""Peers that tiercel is compared with.

consumer        one pika consumer: the limit, which only acks, and one that splits and counts inline
celery_tasks    a Celery task per sentence and one per word
dramatiq_tasks  the same for Dramatiq
words           what a task does with a word, the same for both
"""
