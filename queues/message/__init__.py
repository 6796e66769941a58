"""Properties and headers of a message, and the beginning of its body.

identity     the identity of a message, the same over all deliveries
header_text  headers as text
properties   the properties, their columns, and how each is read
writing      the properties of a message that is to be published
outgoing     a message that is to be published
preview      the beginning of a body
"""
