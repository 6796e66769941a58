"""A bolt task between two steps: its attributes and the tuples it holds, wherever it runs next.

packing  from a working copy to bytes and back
"""
