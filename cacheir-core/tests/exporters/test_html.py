"""The HTML page: self-contained, and inert whatever names a plugin brings. tests/exports runs it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cacheir.exporters.html import html_page
from cacheir.exporters.page_data import LaunchCost, PageInput, page_data
from cacheir.ir import parse_graph
from cacheir.pipeline.diff import module_hash, text_diff
from cacheir.plugins.specs import PassRecord, Stage

MakePage = Callable[..., PageInput]
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>"


class Reader(HTMLParser):
    """The tags of a page, and the text inside each script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.blocks: list[tuple[str, str]] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("script", "style", "title"):
            self.blocks.append((dict(attrs).get("id") or tag, ""))

        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style", "title"):
            name, text = self.blocks[-1]
            self.blocks[-1] = (name, text + data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@pytest.fixture
def hostile(tiny_page: MakePage) -> PageInput:
    """A page whose every free text is an attack."""
    page = tiny_page("grouped", title=HOSTILE)
    records = [replace(record, plugin=HOSTILE, notes=(HOSTILE,)) for record in page.records]
    return replace(page, facts=[HOSTILE], records=records)


def test_no_name_becomes_markup(hostile: PageInput) -> None:
    page = read(html_page(hostile))
    assert "img" not in page.tags
    assert [tag for tag in page.tags if tag in ("script", "style")] == ["style", "script", "script"]
    blocks = dict(page.blocks)
    assert json.loads(blocks["data"])["title"] == HOSTILE
    assert blocks["title"].startswith(HOSTILE)  # as text
    assert "<" not in blocks["data"] and ">" not in blocks["data"] and "&" not in blocks["data"]
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_nothing_is_fetched_and_only_its_own_blocks_may_run(tiny_page: MakePage) -> None:
    text = html_page(tiny_page("grouped"))
    page = read(text)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "action", "srcset")]
    assert "link" not in page.tags and "@import" not in text and "url(" not in text
    (policy,) = [value or "" for name, value in page.attributes if name == "content" and value and "src" in value]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for name in ("style", "script"):
        digest = hashlib.sha256(dict(page.blocks)[name].encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_scripts_make_no_markup_of_text(tiny_page: MakePage) -> None:
    script = dict(read(html_page(tiny_page("grouped"))).blocks)["script"]
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(", script)


def test_the_data_says_what_the_program_says(tiny_page: MakePage) -> None:
    page = tiny_page("two-classes-window")
    data = page_data(page)
    assert [mode["mode"] for mode in data["modes"]] == list(page.modules)
    for mode in data["modes"]:
        module, last = page.modules[mode["mode"]], mode["steps"][-1]
        shown = [data["graphs"][number] for number in last["graphs"]]
        assert [graph["name"] for graph in shown] == [graph.name for graph in module.graphs]
        for graph, written in zip(module.graphs, shown):
            assert [op["name"] for op in written["ops"]] == [op.name for op in graph.ops]
            plan = mode["plan"][graph.name]
            assert [launch["node"] for launch in plan["launches"]] == [op.results[0].name for op in graph.ops]
            assert {place["name"] for place in plan["places"]} == set(page.plans[mode["mode"]].frame(graph.name).places)
        called = sum(op.callee != "" for op in module.main.ops)
        assert len(mode["plan"]["main"]["calls"]) == called > 0
    # Both modes begin with the same graphs, which are there once.
    assert data["modes"][0]["steps"][0]["graphs"] == data["modes"][1]["steps"][0]["graphs"]


def test_costs_are_what_was_worked_out_else_what_the_schedule_recorded(tiny_page: MakePage) -> None:
    page = tiny_page("grouped")
    plain = page_data(page)
    assert plain["machine"] == ""
    launches = plain["modes"][0]["plan"]["decoder_layer"]["launches"]
    entries = page.schedules["prefill"].graph("decoder_layer").entries
    assert [launch["cost"]["bytes"] for launch in launches] == [entry.choices[0].bytes for entry in entries]
    key = ("prefill", "decoder_layer", entries[0].node)
    cost = LaunchCost(bytes=100, operations=50, weight_bytes=400, floor_s=1e-6, predicted_s=2e-6)
    data = page_data(replace(page, costs={key: cost}, machine="a machine"))
    assert data["machine"] == "a machine"
    assert data["modes"][0]["plan"]["decoder_layer"]["launches"][0]["cost"] == {
        "bytes": 100,
        "operations": 50,
        "weight_bytes": 100,  # never more than is moved
        "floor": 1e-6,
        "predicted": 2e-6,
    }


def test_a_step_that_took_a_graph_away_shows_what_went(tiny_page: MakePage) -> None:
    page = tiny_page("grouped")
    module = page.modules["decode"]
    extra = parse_graph("graph @extra { input %x: f32[2] %y: f32[2] = exp(%x) yield %y }")
    before = replace(module, graphs=(*module.graphs, extra))
    diff = text_diff(str(before), str(module), old="before drop", new="after drop")
    record = PassRecord(
        name="drop",
        plugin="core",
        stage=Stage.PLAN,
        mode="decode",
        outcome="changed",
        before=module_hash(before),
        after=module_hash(module),
        seconds=0.0,
        diff=diff,
    )
    data = page_data(replace(page, records=[record]))
    mode = next(mode for mode in data["modes"] if mode["mode"] == "decode")
    (change,) = mode["steps"][-1]["changes"]
    assert (change["graph"], change["after"], change["merged"]) == ("extra", None, [[-1, 0]])
    assert data["graphs"][change["before"]]["ops"][0]["name"] == "exp"
