"""Everything that a message has beside its body, and the beginning of that.

identity     what it is known by over all deliveries
header_text  headers as text
properties   the properties, their columns, and how each is read
writing      the properties of a message that is to be published
outgoing     such a message
preview      the beginning of a body
"""
