"""Emitting, acking and failing, recorded; and folded into updates of the trees at a step's end.

emission         the spout's side of emitting
collectors       what a bolt emits, acks and fails with, at work
answers          what threads of a bolt emit, ack and fail, for its next step
arrow_collector  the same of an ArrowBolt
batch_collector  the same of a BatchBolt
arrow_columns    what an ArrowBolt emitted, as the stream's types
arrow_anchors    what that is anchored to
record           what a task did in one step
outputs          where emissions are recorded
copies           numbers of the copies of one emission
departures       what leaves a step, and what stays behind
fold             what a step did to the trees, in numpy
"""
