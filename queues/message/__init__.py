"""Everything that a message has beside its body, and the beginning of that.

header_text  headers as text
properties   the properties, their columns, and how each is read
writing      the properties of a message that is to be published
outgoing     such a message
preview      the beginning of a body
"""
