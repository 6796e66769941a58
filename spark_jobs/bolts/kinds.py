"""All kinds of bolts, in one type."""

from __future__ import annotations

from tiercel.spark_jobs.bolts.arrow_bolt import ArrowBolt
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt, Bolt

# Kinds that a step executes.
StepBolt = Bolt | BasicBolt | ArrowBolt | BatchBolt
# Kinds that a topology may have.
AnyBolt = StepBolt | AsyncBolt
