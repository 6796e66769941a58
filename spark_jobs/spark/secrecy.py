"""What Spark's ports give to strangers: nothing. Tasks travel with passwords and with the key of the seals."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from pyspark import SparkConf, SparkContext

log = logging.getLogger(__name__)

_SECRET = "spark.authenticate.secret"  # noqa: S105 - a setting's name
# Spark's ports give what it broadcasts to every local user who asks, unless he has to know a secret.
AUTHENTICATED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Version 1 and AES/CTR are Spark's defaults, for the sake of older ones: weaker keys, and bytes that can be changed unseen.
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}


def started(settings: Mapping[str, str]) -> SparkContext:
    """Return the context. The settings are on the JVM's command line, which every user can read, all but the secret.

    Spark draws the secret itself for ``local[N]``, YARN and Kubernetes. For ``local-cluster`` it is drawn here: one run, one
    secret. The executors of a cluster have it in their environment, which Spark's worker gives them.
    """
    shown = {key: value for key, value in settings.items() if key != _SECRET}
    secret = settings.get(_SECRET)
    if secret is None and settings["spark.master"].startswith("local-cluster"):
        secret = secrets.token_urlsafe(32)
    if secret is not None:
        # pyspark puts all settings that it knows when it starts the JVM on the command line, and later ones nowhere.
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(shown.items())))  # noqa: SLF001
        java: Any = SparkContext._jvm  # noqa: SLF001 - the only way to the JVM
        java.java.lang.System.setProperty(_SECRET, secret)
    # Made only now: it reads the JVM's properties.
    return SparkContext.getOrCreate(SparkConf().setAll(list(shown.items())))


def warn_if_open(context: SparkContext, master: str) -> None:
    """Say so where Spark asks for no secret."""
    if context.getConf().get("spark.authenticate", "false") != "true":
        log.warning(
            "Spark at %s asks for no secret: every process that reaches its ports can fetch the passwords of RabbitMQ and"
            " Redis; set spark.authenticate as docs/deploy.md says",
            master,
            extra={"event": "spark_open"},
        )
