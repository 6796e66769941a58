"""A sink behind a feeder, on the broker."""

from __future__ import annotations

from tiercel import Config, TopologyBuilder
from tiercel.testing import FeederSpout, LocalCluster


class SinkStage:
    """A feeder and a sink."""

    def __init__(self, sink, amqp_url, fields="body string", **config):
        self.feeder = FeederSpout(fields=fields)
        builder = TopologyBuilder("sink")
        builder.set_spout("in", self.feeder)
        builder.set_bolt("out", sink).shuffle_grouping("in")
        settings = Config(extra={"amqp_url": amqp_url} if amqp_url else {}, **config)
        self.cluster = LocalCluster(builder.build(), settings)

    def __enter__(self):
        self.cluster.__enter__()
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def publish(self, *rows):
        """Feed rows with message ids that count from 0, and run."""
        for number, values in enumerate(rows):
            self.feeder.feed(values, number)
        self.cluster.run_until_idle()

    @property
    def acked(self):
        return self.cluster.acked("in")

    @property
    def failed(self):
        """Return the reason of each failed message id."""
        return dict(zip(self.cluster.failed("in"), self.cluster.fail_reasons("in"), strict=True))
