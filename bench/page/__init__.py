"""Figures on the pages, between markers of docs/performance.md and README.md.

blocks    the markers, and the text between them
speed     the machine, sentences per second beside the peers, and latency
slow      slow work
costs     the price of inboxes, of the ledger, of tuples
growth    the curves
markdown  tables
"""
