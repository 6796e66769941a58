"""Properties and headers of a message.

identity    the identity of a message, the same over all deliveries
properties  the properties, their columns, and how each is read; headers as text
writing     a message to publish, and its properties
"""
