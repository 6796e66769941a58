"""Collectors of the bolts, and the updates of the trees that a step makes.

record           the record of one step, and the collectors of BasicBolt and Bolt
arrow_collector  the collector of ArrowBolt, whose tuples are rows of Arrow batches
answers          calls from a bolt's own threads, kept for its next step
outputs          recorded emissions and their anchors
fold             the emissions that leave a step, and its updates of the trees, in numpy
"""
