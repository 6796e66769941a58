"""Spouts, bolts and topologies shared by the tests.

Bolts emit their findings, because they may run in another process.
"""

from tiercel import BasicBolt, Bolt, TopologyBuilder
from tiercel.testing import FeederSpout


class Pass(BasicBolt):
    """Emits what it receives."""

    output_fields = "x long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


class Silent(Bolt):
    """Neither acks nor fails."""

    def execute(self, tup, collector):
        pass


class Acking(Bolt):
    def execute(self, tup, collector):
        collector.ack(tup)


class Failing(BasicBolt):
    def execute(self, tup, collector):
        raise ValueError(f"no {tup[0]}")


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup[0].split():
            collector.emit([word])


class Telling(BasicBolt):
    """Reports which of its tasks received each tuple."""

    output_fields = "task int, component string, stream string, source_task int, value string"

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        collector.emit(
            [self.task, tup.source_component, tup.source_stream, tup.source_task, str(tup[0])]
        )


def feeding(*rows, fields="x long", tracked=True):
    """Return a feeder of these values, each its own message id."""
    feeder = FeederSpout(fields=fields)
    for value in rows:
        feeder.feed([value], value if tracked else None)
    return feeder


def chain(spout, *bolts, parallelism=1):
    """Build the bolts in a row, by shuffle; b1 is first."""
    builder = TopologyBuilder("chain")
    builder.set_spout("s", spout)
    for number, bolt in enumerate(bolts, 1):
        builder.set_bolt(f"b{number}", bolt, parallelism).shuffle_grouping(
            f"b{number - 1}" if number > 1 else "s"
        )
    return builder.build()


def outcome(cluster, spout="s"):
    """Return (acked, failed, pending)."""
    return cluster.acked(spout), cluster.failed(spout), cluster.pending(spout)
