"""The measured topologies, with default settings except for the measured one.

words     sentences split, words counted by word
windowed  words summed in windows
orders    one tuple per message
chains    bolts in a row
slow      a bolt that waits
limits    bolts with a rate limit
rows      rows into a database
observed  the spout of all these topologies, with a probe
"""
