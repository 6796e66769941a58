"""Figures on the pages, between markers in docs/performance.md and README.md.

blocks    the markers, and the text between them
speed     the machine, sentences per second of tiercel and the peers, and latency
slow      slow work
storm     tiercel beside Storm in local mode
costs     costs of inboxes, the ledger and tuples
growth    growth curves
markdown  tables
"""
