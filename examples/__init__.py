"""Topologies to run and to copy from: ``tiercel run examples.word_count:topology``.

word_count           sentences from RabbitMQ, split, counted by word into Redis
reliable_sentences   a spout of your own that replays what failed
random_sentences     a spout of your own, and what a timeout does
invoices             from queue to queue
"""
