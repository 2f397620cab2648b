"""The history of a value: which passes touched it, under the names it had, and the lines that say so."""

from __future__ import annotations

from cacheir.pipeline.history import history, names_through
from cacheir.plugins.specs import PassRecord, Stage

BEFORE = "  %a: f32[T] = silu(%x)\n  %b: f32[T] = add(%a, %x)\n"


def record(name: str, diff: str = "", sites: tuple[tuple[str, ...], ...] = (), **fields: str) -> PassRecord:
    given = {"graph": "main", "mode": "", **fields}
    return PassRecord(
        name=name,
        plugin="core",
        stage=Stage.LOGICAL,
        outcome="changed" if diff else "unchanged",
        before="1",
        after="2",
        seconds=0.0,
        diff=diff,
        sites=sites,
        **given,  # type: ignore[arg-type]
    )


RENAMES = [
    record(
        "first",
        "--- old\n+++ new\n@@ -1 +1 @@\n-  %a: f32[T] = silu(%x)\n+  %b: f32[T] = gate(%x)\n",
        (("silu", "a", "b"),),
    ),
    record("idle"),
    record("second", "@@ -1 +1 @@\n-  %b: f32[T] = gate(%x)\n+  %c: f32[T] = fused(%x)\n", (("gate", "b", "k", "c"),)),
    record("elsewhere", "@@ -1 +1 @@\n-  %c: f32[T] = x(%y)\n+  %c: f32[T] = z(%y)\n", graph="other"),
]


def test_a_value_is_followed_through_its_names() -> None:
    own = RENAMES[:3]
    expected = [("a",), ("b",), ("b",), ("c",)]
    for name in "abc":
        assert names_through(own, name) == expected


def test_each_touch_has_its_lines_and_other_graphs_have_none() -> None:
    touches = history(RENAMES, "c", mode="", graph="main")
    assert [(touch.record.name, touch.names) for touch in touches] == [("first", ("a", "b")), ("second", ("b", "c"))]
    assert touches[0].lines == ("-  %a: f32[T] = silu(%x)", "+  %b: f32[T] = gate(%x)")


def test_readers_count_and_longer_names_do_not() -> None:
    diff = "@@ -1,2 +1,2 @@\n-  %q: f32[T] = add(%a, %a.1)\n+  %q: f32[T] = add(%a.1, %a)\n-  %z: f32[T] = silu(%ab)\n"
    (touch,) = history([record("turn", diff)], "a", mode="", graph="main")
    assert len(touch.lines) == 2
    assert history([record("turn", "@@ -1 +1 @@\n-  %a.1: f32[T] = x(%y)\n")], "a", mode="", graph="main") == []


def test_a_value_that_a_pass_took_away_is_known_until_then() -> None:
    gone = [
        record("drop", "@@ -1 +0,0 @@\n-  %dead: f32[T] = silu(%x)\n"),
        record("later", "@@ -1 +1 @@\n-  x\n+  y\n"),
    ]
    (touch,) = history(gone, "dead", mode="", graph="main")
    assert touch.record.name == "drop"


def test_records_of_other_modes_are_left_out() -> None:
    records = [
        record("special", "@@ -1 +1 @@\n-  %a: f32[T] = x(%y)\n+  %a: f32[T] = z(%y)\n", mode=mode)
        for mode in ("prefill", "decode")
    ]
    assert [touch.record.mode for touch in history(records, "a", mode="decode", graph="main")] == ["decode"]
    assert history(records, "a", mode="", graph="main") == []
