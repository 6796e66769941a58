"""Apache Storm's own engine in local mode: the same RabbitMQ, the same sentences.

build       jars and classes, by Maven
cluster     the process that runs a topology of Storm
beside      tiercel and Storm in one round, and uneven work
split_bolt  the bolt in Python that splits sentences
count_bolt  the bolt in Python that counts words
"""
