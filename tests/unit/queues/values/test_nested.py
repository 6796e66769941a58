"""Structs and arrays of structs are the same from a JSON body, from Python and back in JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel import (
    ArrowBolt,
    BasicBolt,
    Bolt,
    QueueSink,
    QueueSpout,
    Schema,
    StatefulBolt,
    TopologyBuilder,
    TopologyError,
)
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, decode, encode
from tiercel.frames.columns import available, struct
from tiercel.frames.options import SourceOptions
from tiercel.queues.errors import BadBodyError, SchemaError
from tiercel.queues.values.formats import decoder_for, json_body
from tiercel.queues.values.models import fields_of, model_decoder
from tiercel.spark_jobs.bolts.tuples import tuples_of
from tiercel.testing import FeederSpout, LocalCluster

ROUTE = Route(component="s", stream="default", source_task=1, target_task=2)
ORDER = (
    "order long, items array<struct<sku: string, price double?, `per unit` int DEFAULT 1>>, "
    "ship struct<city string, days array<date>?>?"
)

# -- any nested type -------------------------------------------------------------------------------

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
# The type, and a strategy for pairs of a JSON value and its Python value.
_LEAVES = st.sampled_from(
    [
        ("long", st.integers(-(2**63), 2**63 - 1).map(lambda n: (n, n))),
        ("tinyint", st.integers(-128, 127).map(lambda n: (n, n))),
        ("boolean", st.booleans().map(lambda b: (b, b))),
        ("string", _TEXT.map(lambda text: (text, text))),
        ("double", st.floats(allow_nan=False, allow_infinity=False).map(lambda n: (n, n))),
        ("date", st.dates().map(lambda day: (day.isoformat(), day))),
        ("decimal(6,2)", st.decimals(-999, 999, places=2).map(lambda n: (str(n), n))),
    ]
)


def _array(inner: tuple[str, Any]) -> tuple[str, Any]:
    type_, pairs = inner
    items = st.lists(pairs | st.just((None, None)), max_size=3)
    return f"array<{type_}>", items.map(
        lambda found: tuple(map(list, zip(*found, strict=True))) or ([], [])
    )


def _struct(members: list[tuple[tuple[str, Any], bool]]) -> tuple[str, Any]:
    names = [f"m{at}" for at in range(len(members))]
    texts = [
        f"{name}{': ' if at % 2 else ' '}{type_}{'?' if optional else ''}"
        for at, (name, ((type_, _), optional)) in enumerate(zip(names, members, strict=True))
    ]
    values = st.tuples(
        *[pairs | st.just((None, None)) if optional else pairs for (_, pairs), optional in members]
    )

    def pair(found: tuple[Any, ...]) -> tuple[Any, Any]:
        body = {
            name: value for name, (value, _) in zip(names, found, strict=True) if value is not None
        }
        return body, {name: value for name, (_, value) in zip(names, found, strict=True)}

    return f"struct<{', '.join(texts)}>", values.map(pair)


_TYPES = st.recursive(
    _LEAVES,
    lambda inner: (
        inner.map(_array)
        | st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(_struct)
    ),
    max_leaves=5,
)


@given(st.data())
def test_any_nested_value_is_the_same_in_json_in_python_in_a_chunk_and_in_json_again(data):
    type_, pairs = data.draw(_TYPES)
    body, value = data.draw(pairs)
    schema = Schema.parse(f"x {type_}, n long")
    assert Schema.parse(str(schema)) == schema
    decoder = decoder_for(schema)
    assert decoder(json.dumps({"x": body, "n": 1}).encode()) == [value, 1]
    schema.check([value, 1])
    ids = np.zeros(1, np.uint64)
    lineage = Lineage(offsets=np.array([0, 1], np.int32), roots=ids, edges=ids)
    chunk = decode(encode(Chunk(route=ROUTE, values=schema.batch([[value, 1]]), lineage=lineage)))
    assert chunk.values.schema == schema.arrow
    [tup] = tuples_of(chunk)
    assert list(tup.values) == [value, 1]
    assert decoder(json_body(zip(tup.fields, tup.values, strict=True))) == [value, 1]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["m0", "m1", "m2"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_TYPES, _JSON)
def test_any_other_json_fits_or_is_refused_with_one_line(typed, value):
    schema = Schema.parse(f"x {typed[0]}")
    with suppress(BadBodyError):
        schema.batch([decoder_for(schema)(json.dumps({"x": value}).encode())])
    with suppress(SchemaError):
        schema.batch([[value]])


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"items": [{"sku": 1}]}, r"field 'items\[0\].sku' is a string, .* the number 1"),
        (
            {"items": [{"sku": "a"}, None, {"sku": "b", "price": "x"}]},
            r"^field 'items\[2\].price' is a double, the body has the string 'x'$",
        ),
        ({"items": [{}]}, r"^the body has no 'items\[0\].sku', which must be a string$"),
        ({"items": [{"sku": None}]}, r"^field 'items\[0\].sku' is a string, the body has null$"),
        ({"items": ["a"]}, r"^field 'items\[0\]' is a struct<sku string, .* has the string 'a'$"),
        ({"items": {}}, r"^field 'items' is an array<struct<.*…, the body has an object$"),
        ({"items": [], "ship": {}}, r"^the body has no 'ship.city', which must be a string$"),
        (
            {"items": [], "ship": {"city": "a", "days": ["2024-01-01", "soon"]}},
            r"^field 'ship.days\[1\]' is a date, the body has the string 'soon'$",
        ),
    ],
)
def test_a_body_that_does_not_fit_names_the_path(body, why):
    with pytest.raises(BadBodyError, match=why):
        decoder_for(Schema.parse(ORDER))(json.dumps({"order": 1, **body}).encode())


@pytest.mark.parametrize(
    ("items", "ship", "why"),
    [
        ([{"sku": 1, "per unit": 1}], None, r"^field 'items\[0\].sku' is a string, .* int 1$"),
        ([{"per unit": 1}], None, r"^field 'items\[0\]' has no 'sku', which must be a string$"),
        (
            [{"sku": "a", "per unit": 1.0}],
            None,
            r"^field 'items\[0\].per unit' is an int, the value is the float 1.0$",
        ),
        (
            [{"sku": "a", "per unit": 1, "prise": 1}],
            None,
            r"^field 'items\[0\]' has no member 'prise'; its members are sku, price, per unit$",
        ),
        ({"sku": "a"}, None, "^field 'items' is an array<struct<.*…, the value is the dict"),
        ([], ["a"], "^field 'ship' is a struct<city string, .*, the value is the list"),
        (
            [],
            {"city": "a", "days": [dt.date(2024, 1, 1), "soon"]},
            r"^field 'ship.days\[1\]' is a date, the value is the str 'soon'$",
        ),
    ],
)
def test_a_value_that_does_not_fit_names_the_path(items, ship, why):
    for refused in (Schema.parse(ORDER).check, lambda row: Schema.parse(ORDER).batch([row])):
        with pytest.raises(SchemaError, match=why):
            refused([1, items, ship])


def test_a_bolt_may_emit_none_in_a_struct_and_leave_out_what_is_optional():
    row = [1, [{"sku": None, "per unit": np.int64(2)}, None], {"city": "a"}]
    schema = Schema.parse(ORDER)
    schema.check(row)
    assert schema.batch([row]).to_pylist() == [
        {
            "order": 1,
            "items": [{"sku": None, "price": None, "per unit": 2}, None],
            "ship": {"city": "a", "days": None},
        }
    ]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("a struct<>", "the struct 'struct<>' in .* has no members"),
        ("a struct<x>", "cannot read 'x'"),
        ("a struct<x long, x string>", "names the field 'x' twice"),
        ("a struct<x strng>", "unknown type 'strng'"),
        ("a struct<m map<string,string>>", "unknown type 'map<string,string>'.* no map in them"),
        ("a struct<x long", "unknown type"),
        (f"a {'struct<a ' * 17}long{'>' * 17}", "16 arrays in one another, structs included"),
        (f"a {'array<struct<a ' * 9}long{'>>' * 9}", "16 arrays in one another"),
    ],
)
def test_a_struct_that_cannot_be_read_says_why(ddl, why):
    with pytest.raises(SchemaError, match=why):
        Schema.parse(ddl)


def test_names_in_a_struct_keep_their_letters_and_a_default_may_follow_it():
    schema = Schema.parse("a STRUCT<Sku STRING DEFAULT '>', default int>, b ARRAY<INT> DEFAULT []")
    assert str(schema) == ('a struct<Sku string DEFAULT ">", default int>, b array<int> DEFAULT []')
    assert decoder_for(schema)(b'{"a": {"default": 1}}') == [{"Sku": ">", "default": 1}, []]


# -- models ----------------------------------------------------------------------------------------


class Item(pydantic.BaseModel):
    sku: str
    price: float | None = None
    link: pydantic.HttpUrl | None = None


class Node(pydantic.BaseModel):
    name: str
    below: list[Node] = []


class Order(pydantic.BaseModel):
    order: int
    items: list[Item]
    first: Item | None = None
    raw: Annotated[Item | None, "string"] = None
    tree: Node | None = None


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1
    due: dt.date | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("nothing is ordered")


@dataclasses.dataclass
class Cart:
    lines: list[Line]
    gift: Line | None = None


@dataclasses.dataclass
class Mixed:
    item: Item


@dataclasses.dataclass
class Endless:
    below: list[Endless]


def test_a_pydantic_model_inside_a_model_is_a_struct():
    assert fields_of(Order) == (
        "`order` long, `items` array<struct<`sku` string, `price` double?, `link` string?>>, "
        "`first` struct<`sku` string, `price` double?, `link` string?>?, `raw` string?, "
        "`tree` struct<`name` string, `below` string>?"
    )
    values = model_decoder(Order)(
        b'{"order": 1, "items": [{"sku": "a", "link": "http://a.b"}, {"sku": "b", "price": 2}], '
        b'"raw": {"sku": "c"}, "tree": {"name": "x", "below": [{"name": "y"}]}}'
    )
    assert values == [
        1,
        [
            {"sku": "a", "price": None, "link": "http://a.b/"},
            {"sku": "b", "price": 2.0, "link": None},
        ],
        None,
        '{"sku":"c","price":null,"link":null}',
        {"name": "x", "below": '[{"name":"y","below":[]}]'},
    ]
    assert Schema.parse(fields_of(Order)).batch([values]).num_rows == 1
    with pytest.raises(BadBodyError, match=r"^Order: field 'items\[1\].sku': Input should be"):
        model_decoder(Order)(b'{"order": 1, "items": [{"sku": "a"}, {"sku": 1}]}')


def test_a_dataclass_inside_a_dataclass_is_a_struct():
    assert fields_of(Cart) == (
        "`lines` array<struct<`sku` string, `count` long, `due` date?>>, "
        "`gift` struct<`sku` string, `count` long, `due` date?>?"
    )
    decoder = model_decoder(Cart)
    values = decoder(b'{"lines": [{"sku": "a"}, {"sku": "b", "count": 2, "due": "2024-02-29"}]}')
    assert values == [
        [
            {"sku": "a", "count": 1, "due": None},
            {"sku": "b", "count": 2, "due": dt.date(2024, 2, 29)},
        ],
        None,
    ]
    assert Schema.parse(fields_of(Cart)).batch([values]).num_rows == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            b'{"lines": [{"sku": "a"}, {"sku": "b", "count": 0}]}',
            r"^field 'lines\[1\]': Line: ValueError: nothing is ordered$",
        ),
        (
            b'{"lines": [], "gift": {"sku": "b", "count": 0}}',
            "^field 'gift': Line: ValueError: nothing is ordered$",
        ),
        (b'{"lines": [], "gift": {}}', "^the body has no 'gift.sku', which must be a string$"),
        (
            b'{"lines": [{"sku": "a", "count": null}]}',
            r"^field 'lines\[0\].count' is a long, the body has null$",
        ),
    ],
)
def test_a_body_that_a_dataclass_in_a_dataclass_does_not_take_names_the_path(body, why):
    with pytest.raises(BadBodyError, match=why):
        model_decoder(Cart)(body)


@pytest.mark.parametrize(
    ("model", "field"), [(Mixed, "field 'item' of Mixed"), (Endless, "field 'below' of Endless")]
)
def test_a_dataclass_that_no_columns_can_hold_is_refused(model, field):
    with pytest.raises(SchemaError, match=f"{field} has the type .* another dataclass"):
        fields_of(model)


# -- in a topology ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Ship:
    city: str
    days: list[dt.date]


class Addresses(BasicBolt):
    """Emits an instance of a class, and mutates it before it is sent."""

    output_fields = ORDER

    def execute(self, tup, collector):
        items = [dict(one, **{"per unit": 3}) for one in tup["items"]]
        ship = Ship(f"city of {tup['order']}", [])
        collector.emit([tup["order"], items, ship])
        items[0]["sku"] = ship.city = "changed"
        ship.days.append(dt.date(2024, 1, 1))


class Columns(ArrowBolt):
    output_fields = ORDER
    seen: ClassVar[list[pa.Schema]] = []

    def execute(self, batch, collector):
        self.seen.append(batch.schema)
        # A data frame may have the fields in another order, and with smaller types.
        items = [
            [{key: one[key] for key in reversed(one)} for one in row]
            for row in batch["items"].to_pylist()
        ]
        table = pa.table({"order": batch["order"], "items": items, "ship": batch["ship"]})
        collector.emit(table, np.arange(batch.num_rows))


class Remembers(StatefulBolt):
    output_fields = ORDER
    once = True

    def execute(self, tup, collector):
        collector.emit(tup.values)


def orders(spout: Any, *bolts: Any) -> Any:
    builder = TopologyBuilder("orders")
    builder.set_spout("orders", spout)
    last = "orders"
    for at, bolt in enumerate(bolts):
        builder.set_bolt(f"bolt{at}", bolt).shuffle_grouping(last)
        last = f"bolt{at}"
    builder.set_bolt("sink", QueueSink("sink")).shuffle_grouping(last)
    return builder.build()


BODY = {
    "order": 1,
    "items": [
        {"sku": "ä", "price": 1.5, "per unit": 3},
        {"sku": "b", "price": None, "per unit": 3},
    ],
    "ship": {"city": "city of 1", "days": []},
}


def test_bolts_of_all_kinds_get_and_give_structs_and_a_sink_writes_them_as_json(local_cluster):
    spout = QueueSpout("orders", ORDER, identity="header:id")
    cluster = local_cluster(orders(spout, Addresses(), Columns(), Remembers()))
    for _ in range(2):
        cluster.feed_body(
            '{"order": 1, "items": [{"sku": "ä", "price": 1.5}, {"sku": "b"}], "ship": null}',
            identity="one",
        )
        cluster.run_until_idle()
    assert [each.json() for each in cluster.published("sink")] == [BODY, BODY]
    assert Columns.seen[-1] == Schema.parse(ORDER).arrow


class EmitsWrongMembers(Bolt):
    output_fields = "at struct<x long>"

    def execute(self, tup, collector):
        collector.emit([{"x": 1, "y": 2}], tup)
        collector.ack(tup)


def test_a_bolt_that_emits_a_wrong_member_fails_its_tuple_with_the_path():
    feeder = FeederSpout(fields="n long")
    with LocalCluster(orders(feeder, EmitsWrongMembers())) as cluster:
        feeder.feed([1], msg_id=1)
        cluster.run_until_idle()
        assert (
            "field 'at' has no member 'y'; its members are x" in cluster.fail_reasons("orders")[0]
        )


@pytest.mark.parametrize("type_", ["struct<x long>", "array<struct<x long>>"])
def test_nothing_is_grouped_by_a_struct(type_):
    builder = TopologyBuilder("orders")
    builder.set_spout("orders", FeederSpout(fields=f"at {type_}"))
    builder.set_bolt("sink", QueueSink("sink")).fields_grouping("orders", "at")
    with pytest.raises(TopologyError, match=f"field 'at' is an? {type_}, by which nothing can be"):
        builder.build()


def test_a_data_frame_has_the_same_columns():
    options = SourceOptions.read({"url": "amqp://localhost", "queue": "orders", "fields": ORDER})
    columns = {each.name: each.dataType.simpleString() for each in struct(available(options))}
    assert columns["items"] == "array<struct<sku:string,price:double,per unit:int>>"
    assert columns["ship"] == "struct<city:string,days:array<date>>"
