"""Emitting, acking and failing, recorded; and folded into updates of the trees at a step's end.

collectors       what a bolt emits, acks and fails with, at work
arrow_collector  the same of an ArrowBolt, whose rows are batches of Arrow
answers          what threads of a bolt emit, ack and fail, for its next step
record           what a task did in one step
outputs          where emissions are recorded, and what they are anchored to
fold             what leaves a step, and what it did to the trees, in numpy
"""
