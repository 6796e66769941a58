"""The topologies that are measured, each with the defaults but for the measured setting.

words     sentences split, words counted by word
orders    one tuple per message
chains    bolts in a row
slow      a bolt that waits
limits    bolts with a rate limit
rows      rows into a database
observed  the spout of them all, with a probe
"""
