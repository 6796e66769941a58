"""Emitting, acking and failing, recorded; and folded into updates of the trees at a step's end.

emission         the spout's side of emitting
collector        what a bolt emits, acks and fails with
arrow_collector  what an ArrowBolt emits and fails with
arrow_columns    what an ArrowBolt emitted, as the stream's types
arrow_anchors    what that is anchored to
outputs          where emissions are recorded
departures       what leaves a step, and what stays behind
fold             what a step did to the trees, in numpy
"""
