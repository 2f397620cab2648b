"""Records as JSON: what is written is read back, and anything else is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import ArtifactDamagedError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.record_json import from_json, json_bytes, parse_json, to_json
from cacheir.schedule.schedule import Buffer, Candidate, Choice, Entry, GraphSchedule, Schedule


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    flag: bool
    parts: tuple[Inner, ...]
    pair: tuple[int, str]
    table: Mapping[str, Inner]
    maybe: Inner | None = None
    anything: Mapping[str, Any] = field(default_factory=dict)


GOOD = {"name": "x", "flag": True, "parts": [{"size": 1}], "pair": [1, "a"], "table": {"k": {"size": 2, "share": 1}}}

names = st.text(st.characters(codec=None), max_size=8)
inners = st.builds(Inner, size=st.integers(), share=st.floats(allow_nan=False, allow_infinity=False))
outers = st.builds(
    Outer,
    name=names,
    flag=st.booleans(),
    parts=st.lists(inners, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), names),
    table=st.dictionaries(names, inners, max_size=3),
    maybe=st.none() | inners,
    anything=st.dictionaries(names, st.none() | st.integers() | names | st.lists(st.booleans()), max_size=3),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.sampled_from([*GOOD]), inner, max_size=6),
    max_leaves=12,
)


@given(outers)
def test_round_trip(record: Outer) -> None:
    data = json_bytes(to_json(record))
    assert from_json(Outer, parse_json(data, "f"), "f") == record
    assert json_bytes(parse_json(data, "f")) == data


@given(values)
def test_other_values_are_refused_and_never_crash(value: Any) -> None:
    try:
        record = from_json(Outer, value, "file.json")
    except ArtifactDamagedError as error:
        assert str(error).startswith("file.json")
    else:
        assert from_json(Outer, to_json(record), "file.json") == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "file.json: name must be text, not 3"),
        ({"flag": 1}, "file.json: flag must be true or false, not 1"),
        ({"parts": [{"size": 1}, {"size": True}]}, "file.json: parts[1].size must be a whole number, not True"),
        ({"parts": [{"size": 1.5}]}, "file.json: parts[0].size must be a whole number, not 1.5"),
        ({"parts": {}}, "file.json: parts must be a list"),
        ({"pair": [1]}, "file.json: pair must have 2 items, not 1"),
        ({"table": {"k": {}}}, "file.json: table.k lacks the field 'size'"),
        ({"extra": 1}, "file.json has the unknown field 'extra'"),
        ({"maybe": 7}, "file.json: maybe must be an object with the fields of Inner"),
    ],
)
def test_the_message_names_the_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactDamagedError) as caught:
        from_json(Outer, {**GOOD, **change}, "file.json")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"NaN", b'{"a": -Infinity}', b"1e999", b"9" * 5000, b"[" * 100_000]
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactDamagedError, match="is not JSON"):
        parse_json(data, "file.json")


def test_bytes_do_not_depend_on_the_order_of_keys() -> None:
    assert json_bytes({"b": 1, "a": 2}) == json_bytes({"a": 2, "b": 1}) == b'{"a": 2, "b": 1}\n'


@given(values)
def test_the_spelling_is_json_and_its_lines_are_short(value: Any) -> None:
    data = json_bytes(value)
    assert parse_json(data, "file.json") == json.loads(json.dumps(value))
    for line in data.decode().splitlines():
        # What is longer than a line is one value that cannot be cut.
        assert len(line) <= 130 or line.strip().count(":") <= 2 or line.strip()[0] not in "{["


def test_a_call_and_the_bases_of_calls_take_a_line_each() -> None:
    call = {"op_name": "call", "reads": [{"kind": "arena", "name": f"h.{number}"} for number in range(9)]}
    other = {**call, "op_name": "add"}
    assert json_bytes([call]).count(b"\n") == 3 and json_bytes([other]).count(b"\n") == 16
    bases = {f"h.{number}": number * 64 for number in range(40)}
    assert json_bytes({"call_bases": bases}).count(b"\n") == 3 and json_bytes({"places": bases}).count(b"\n") == 44


def test_the_records_of_a_program_go_through() -> None:
    buffer = Buffer(kind="arena", name="x")
    candidate = Candidate(kernel="k", target="t", plugin="p", refusal="no")
    choice = Choice(rows_up_to=0, kernel="", reason="r", candidates=(candidate,))
    entry = Entry(node="x", op=0, op_name="silu", choices=(choice,), reads=(), writes=(buffer,))
    graphs = (GraphSchedule(graph="main", entries=(entry,)),)
    schedule = Schedule(mode="decode", target="t", row_classes=(1, 0), graphs=graphs, kernels={"k": "d"})
    rope = RopeSpec(theta=1e4, dims=4, factors=(1.0, 2.0))
    layer = LayerSpec(heads=2, kv_heads=1, head_dim=4, feed_forward=8, rope=rope)
    spec = DecoderSpec(
        family="f",
        label="l",
        vocab_size=9,
        hidden=8,
        max_positions=16,
        norm_eps=1e-5,
        layers=(layer, LayerSpec(heads=2, kv_heads=1, head_dim=4, feed_forward=8, rope=None)),
        tied_head=True,
    )
    plan = MemoryPlan(mode="decode", alignment=64, arena_bytes=0, frames=())
    for record in (schedule, spec, plan):
        assert from_json(type(record), json.loads(json_bytes(to_json(record))), "f") == record
