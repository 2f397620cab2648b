"""The HTML page of SmolLM2 in a real browser: what the slider, the search, the keys and the colours do."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cacheir.artifact.artifact import Artifact
from cacheir.cli.export_page import export_html, page_input
from cacheir.compile import open_program
from cacheir.exporters.html import html_page
from cacheir.exporters.page_data import START
from cacheir.plugins.installation import default

pytestmark = pytest.mark.slow  # a browser; `make view-test` runs it, and so does CI where Chromium is installed

Open = Callable[..., Any]
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>"

# Keys of all drawn ops by what the step did to them; calls are drawn one by one.
STATES = """() => Object.fromEntries(["added", "removed", "same"].map((state) => [
  state, [...document.querySelectorAll(`g.op[data-state=${state}]`)].map((node) => node.dataset.key.slice(1)).sort(),
]))"""
# Contrast of an element's text with the first opaque ground under it, after the formula of WCAG 2.
CONTRAST = """(selector) => {
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].map((part) => {
      const c = part / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  const style = getComputedStyle(element);
  const box = element.closest("g.node")?.querySelector(".box");
  let ground = element;
  while (!box && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const under = box ? getComputedStyle(box).fill : getComputedStyle(ground).backgroundColor;
  const [a, b] = [light(element.ownerSVGElement ? style.fill : style.color), light(under)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


@pytest.fixture(scope="module")
def artifact(smollm2_path: Path) -> Artifact:
    return open_program(smollm2_path)


@pytest.fixture(scope="module")
def file(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as ``cacheir export`` writes it."""
    text = io.StringIO()
    export_html(artifact, text)
    file = tmp_path_factory.mktemp("page") / "smollm2.html"
    file.write_text(text.getvalue(), "utf-8")
    return file


def set_slider(page: Any, number: int) -> None:
    page.evaluate(
        "(n) => { const s = document.getElementById('slider'); s.value = n; s.dispatchEvent(new Event('input')); }",
        number,
    )


def graph_tabs(page: Any) -> list[str]:
    names: list[str] = page.eval_on_selector_all("#graphs button", "all => all.map((each) => each.dataset.value)")
    return names


def step_names(page: Any) -> list[str]:
    names: list[str] = page.eval_on_selector_all("#steps .step-name", "all => all.map((each) => each.textContent)")
    return names


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_the_slider_changes_exactly_the_ops_of_the_diff(
    open_page: Open, file: Path, artifact: Artifact, mode: str
) -> None:
    page = open_page(file, f"#{mode}/0/main/")
    page.locator("#follow").uncheck()
    page.locator("#canvas").focus()
    page.keyboard.press("x")  # the calls of main one by one
    records = [record for record in artifact.records() if record.mode in ("", mode)]
    names = step_names(page)
    assert names == [START, *dict.fromkeys(record.name for record in records)]
    changed = 0
    for number, name in enumerate(names):
        set_slider(page, number)
        diffs = {record.graph: record.diff for record in records if record.name == name and record.diff}
        whole = "" in diffs  # a step that made a new module tells its diffs graph by graph
        tabs = graph_tabs(page)
        assert set(diffs) - {""} <= set(tabs)
        for graph in tabs:
            if mode == "prefill" and graph not in diffs and not whole:
                continue  # that other graphs keep still is seen in decode
            page.locator(f'#graphs button[data-value="{graph}"]').click()
            if graph == "main" and page.locator("g.op[data-calls='30']").count():
                page.keyboard.press("x")
            page.locator('#tabs button[data-value="step"]').click()
            diff = shown_diff(page, graph) if whole else diffs.get(graph, "").splitlines()[2:]
            states = page.evaluate(STATES)
            assert states["added"] == first_results(diff, "+"), (name, graph)
            assert states["removed"] == first_results(diff, "-"), (name, graph)
            changed += bool(diff)
    assert changed > 5


def shown_diff(page: Any, graph: str) -> list[str]:
    lines: list[str] = page.evaluate(
        """(name) => [...document.querySelectorAll("#details section")]
          .filter((part) => part.querySelector("h3").textContent === "@" + name)
          .flatMap((part) => [...part.querySelectorAll(".diff span")].map((line) => line.textContent))""",
        graph,
    )
    return lines


def first_results(lines: list[str], sign: str) -> list[str]:
    """The first result of each op line of a diff with this sign."""
    return sorted(line[4:].split(":")[0] for line in lines if line.startswith(f"{sign}  %"))


def test_the_finished_step_has_the_program_s_ops(open_page: Open, file: Path, artifact: Artifact) -> None:
    page = open_page(file)
    page.locator("#canvas").focus()
    for graph in artifact.program.modules["decode"].graphs:
        page.locator(f'#graphs button[data-value="{graph.name}"]').click()
        if graph.name == "main":
            assert page.locator("g.op[data-calls='30']").count() == 1
            page.keyboard.press("x")
        keys = page.evaluate(STATES)
        drawn = sorted([*keys["same"], *keys["added"]])
        assert drawn == sorted(op.results[0].name for op in graph.ops)


def test_kernels_refusals_and_places_are_the_program_s(open_page: Open, file: Path, artifact: Artifact) -> None:
    page = open_page(file, "#decode/999/decoder_layer/")
    program = artifact.program
    refusals = 0
    for entry in program.schedules["decode"].graph("decoder_layer").entries:
        page.locator(f'g.op[data-key="+{entry.node}"]').dispatch_event("click")
        details = page.locator("#details").inner_text()
        for choice in entry.choices:
            assert (choice.kernel or "by its meaning") in details
            assert choice.reason in details
        for candidate in entry.choices[0].candidates:
            if candidate.refusal:
                assert candidate.kernel in details and candidate.refusal in details
                refusals += 1
    assert refusals
    places = program.plans["decode"].frame("decoder_layer").places
    assert page.locator("#chart .place").count() == len(places)
    page.locator('#chart .place[data-node="product"]').first.click()
    assert page.locator("g.op.chosen").get_attribute("data-key") == "+product"
    page.locator('#charts button[data-value="cost"]').click()
    assert page.locator("#chart .cost").count() == len(program.modules["decode"].graph("decoder_layer").ops)


def test_search_finds_ops_values_weights_and_kernels(open_page: Open, file: Path) -> None:
    page = open_page(file)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("ffn.gate")
    assert page.locator("#results [role=option]").count() == 1  # the weight is read by one op
    page.keyboard.press("Enter")
    assert page.locator("#graphs [aria-selected=true]").text_content() == "@decoder_layer"
    assert page.locator("g.op.chosen").get_attribute("data-key") == "+product"
    assert page.locator("g.op.match").count() == 1
    page.keyboard.press("/")
    page.locator("#search").fill("linear")
    options = page.locator("#results [role=option]")
    assert options.count() > 2
    page.keyboard.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert options.last.get_attribute("aria-selected") == "true"
    page.locator("#search").fill("no such thing")
    assert "no op" in page.locator("#results").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#results").is_hidden()
    assert page.locator("g.op.match").count() == 0
    page.locator("#search").fill("cpu.numpy.embedding")
    assert page.locator("#results [role=option]").count() == 1


def test_keys(open_page: Open, file: Path) -> None:
    page = open_page(file, "#decode/0/main/")
    last = int(page.get_attribute("#slider", "max"))

    def step() -> int:
        return int(page.input_value("#slider"))

    page.keyboard.press("]")
    page.keyboard.press("]")
    assert step() == 2
    page.keyboard.press("[")
    assert step() == 1
    page.keyboard.press("n")
    assert page.locator("#steps [aria-current] .step-counts").inner_text() != "unchanged"
    assert page.locator("#graphs [aria-selected=true]").text_content() == "@decoder_layer"  # changes are followed
    page.keyboard.press("d")
    assert page.locator("g.op.chosen").get_attribute("data-state") != "same"
    page.keyboard.press("}")
    assert step() == last
    page.keyboard.press("u")
    assert page.locator("#graphs [aria-selected=true]").text_content() == "@main"
    page.locator("#canvas").focus()
    page.keyboard.press("Home")
    assert page.locator("#details h2").inner_text().strip() == "embedding"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#details h2").inner_text().strip() == "@decoder_layer"
    page.keyboard.press("Enter")
    assert page.locator("#graphs [aria-selected=true]").text_content() == "@decoder_layer"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert page.locator("g.op.chosen").count() == 0
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#keys").is_hidden()
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    assert step() == last - 1


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_both_colour_schemes_can_be_read(open_page: Open, file: Path, colours: str) -> None:
    page = open_page(file, "#decode/8/decoder_layer/", colours)

    def ground() -> int:
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)[0]")
        return int(red)

    assert (ground() > 128) == (colours == "light")
    page.locator('#tabs button[data-value="step"]').click()
    selectors = [
        "h1",
        "#now b",
        "#now span",
        ".step-name",
        "#graphs button",
        ".legend span",
        ".diff .added",
        ".diff .removed",
    ]
    selectors += ["g.op.same .title", "g.op.same .sub", "g.op.added .title", "g.op.removed .title", "g.op.removed .sub"]
    for selector in selectors:
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    for _ in range(2 if colours == "light" else 1):  # auto, light, dark
        page.keyboard.press("t")
    assert (ground() > 128) == (colours == "dark")


def test_a_link_leads_to_its_place(open_page: Open, file: Path) -> None:
    page = open_page(file, "#prefill/6/decoder_layer/%2Bx_attn")
    assert page.locator("#modes [aria-pressed=true]").text_content() == "prefill"
    assert page.input_value("#slider") == "6"
    page.evaluate("location.hash = '#decode/%ZZ/nothing'")
    page.wait_for_function("document.querySelector('#modes [aria-pressed=true]').textContent === 'decode'")
    assert page.locator("#graphs [aria-selected=true]").text_content() == "@main"


def test_hostile_names_stay_text(open_page: Open, artifact: Artifact, tmp_path: Path) -> None:
    page = page_input(artifact, default())
    records = [replace(record, plugin=HOSTILE, notes=(HOSTILE,)) for record in page.records]
    file = tmp_path / "hostile.html"
    file.write_text(html_page(replace(page, title=HOSTILE, facts=[HOSTILE], records=records)), "utf-8")
    shown = open_page(file, "#decode/8/decoder_layer/")
    assert shown.locator("h1").text_content() == HOSTILE
    shown.locator('#tabs button[data-value="step"]').click()
    assert HOSTILE in shown.locator("#details").inner_text()
    assert shown.locator("img").count() == 0
    assert shown.locator("script").count() == 2
    assert shown.title().startswith(HOSTILE)
