"""A bolt task between two steps: its attributes and the tuples it holds, wherever it runs next.

packing  from a working copy to bytes and back
parts    beside it, what the order of its tuples keeps
signing  bytes of strangers are never unpickled
"""
