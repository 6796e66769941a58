"""Settings that name fields: read, and looked for on every stream that a bolt receives."""

from __future__ import annotations

import pyarrow as pa

from tiercel.queues.nouns import with_article
from tiercel.queues.values.python_values import TEXTS
from tiercel.queues.values.schema import Field
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.graph import BoltSpec, Subscription, Topology


def named_fields(given: object) -> tuple[str, ...]:
    """The fields that a setting names: one, or several in a list; empty for anything else."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()


def check_common_fields(topology: Topology, id_: str, spec: BoltSpec, setting: str) -> None:
    """Raises TopologyError unless each field that the setting names is on every stream, and of one
    type: 5 and "5" are two keys.
    """
    given = spec.overrides[setting]
    names = named_fields(given)
    if not names:
        raise TopologyError(
            f"bolt {id_!r}: {setting} must be a field, or a list of fields, not {given!r:.60}"
        )
    kinds: dict[str, tuple[Field, Subscription]] = {}
    for subscription in spec.subscriptions:
        schema = topology.spec(subscription.component).streams[subscription.stream]
        for name in names:
            if name not in schema.names:
                raise TopologyError(
                    f"bolt {id_!r}: there is no field {name!r} for {setting} in "
                    f"{stream_of(subscription)}; its fields are {', '.join(schema.names)}"
                )
            field = schema.fields[schema.position(name)]
            if field.arrow == TEXTS:
                raise TopologyError(
                    f"bolt {id_!r}: {setting} names {name!r}, which is a map; emit what it is to "
                    "go by as a field of its own"
                )
            first, source = kinds.setdefault(name, (field, subscription))
            if _kind(first) != _kind(field):
                raise TopologyError(
                    f"bolt {id_!r}: {setting} names {name!r}, which is "
                    f"{with_article(first.type)} in {stream_of(source)} and "
                    f"{with_article(field.type)} in {stream_of(subscription)}: declare one type"
                )


def stream_of(subscription: Subscription) -> str:
    """A stream in the words of an error message."""
    return f"stream {subscription.stream!r} of {subscription.component!r}"


def _kind(field: Field) -> pa.DataType:
    # A key is hashed as a number, of however many bits.
    return pa.int64() if pa.types.is_integer(field.arrow) else field.arrow
