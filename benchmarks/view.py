"""Looks at the HTML page in headless Chromium: times slider steps over a thousand ops, and takes the screenshots.

    python benchmarks/view.py [--rounds 5] [--chromium PATH]

Needs Chromium and the package playwright; `make view-check` installs the latter. Writes benchmarks/view/report.json and
the PNG files beside it. A step over 1000 ops may take 200 ms until the next frame is there; the report says whether it
does, and no test asserts a time. Beside the time until then (`shown`) stands the processor time of the page's thread
(`cpu`), which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from large_page import large_page
from playwright.sync_api import Browser, Page, sync_playwright

from cacheir.bench.environment import cpu
from cacheir.cli.export_page import export_html
from cacheir.compile import open_program
from cacheir.exporters.html import html_page

OUT = Path(__file__).with_name("view")
BUDGET_MS = 200
SIZE = {"width": 1280, "height": 800}

# name, place in the page, colours, keys that are pressed first
SHOTS = (
    ("pass", "#decode/{fuse-swiglu}/decoder_layer/", "light", ()),
    ("finished", "#decode/999/decoder_layer/%2Bq_turned", "dark", ()),
    ("folded", "#prefill/999/main/", "light", ()),
    ("roofline", "#decode/999/decoder_layer/%2Bdown", "light", ("c",)),
)

# From the input event until the frame that shows it: the first callback comes before that frame, the second after it.
STEP = """async (number) => {
  const slider = document.getElementById("slider");
  const start = performance.now();
  slider.value = number;
  slider.dispatchEvent(new Event("input"));
  const handled = performance.now() - start;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return { handled, shown: performance.now() - start, drawn: document.querySelectorAll("g.op").length };
}"""


def main() -> None:
    """Take the pictures, measure, write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser") or "")
    parser.add_argument("--model", default="smollm2")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        model, large = Path(folder) / "model.html", Path(folder) / "large.html"
        text = io.StringIO()
        export_html(open_program(options.model), text)
        model.write_text(text.getvalue(), "utf-8")
        large.write_text(html_page(large_page()), "utf-8")
        browser = playwright.chromium.launch(executable_path=options.chromium or None, args=["--no-sandbox"])
        report = {
            "chromium": browser.version,
            "environment": cpu(),
            "load_average": os.getloadavg()[0],
            "page_bytes": {"model": model.stat().st_size, "large": large.stat().st_size},
            "steps_ms": time_steps(browser, large, options.rounds),
        }
        take_shots(browser, model, large)
        browser.close()
    (OUT / "report.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps({key: report["steps_ms"][key] for key in ("budget", "shown", "cpu")}, indent=2))


def opened(browser: Browser, file: Path, place: str, colours: Any = "light") -> Page:
    """The page, without a network."""
    context = browser.new_context(viewport=SIZE, color_scheme=colours, offline=True)
    page = context.new_page()
    page.goto(file.as_uri() + place)
    page.wait_for_selector("g.op")
    return page


def time_steps(browser: Browser, file: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds of each step of the slider, from the first to the last and back, ``rounds`` times."""
    page = opened(browser, file, "#decode/0/main/")
    last = int(page.get_attribute("#slider", "max") or 0)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu_ms() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")) * 1000

    samples: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for number in [*range(1, last + 1), *range(last - 1, -1, -1)]:
            before = cpu_ms()
            sample = page.evaluate(STEP, number)
            samples.setdefault(f"to {number}", []).append({**sample, "cpu": cpu_ms() - before})
            page.wait_for_timeout(50)
    page.context.close()
    return {
        "budget": BUDGET_MS,
        **{key: _summary([sample[key] for each in samples.values() for sample in each]) for key in ("shown", "cpu")},
        "samples": {
            name: [{key: round(value, 1) for key, value in sample.items()} for sample in each]
            for name, each in samples.items()
        },
    }


def _summary(values: list[float]) -> dict[str, Any]:
    """Median and most of the samples, and whether each is within the budget."""
    most = max(values)
    return {"median": round(statistics.median(values), 1), "most": round(most, 1), "within_budget": most < BUDGET_MS}


def take_shots(browser: Browser, model: Path, large: Path) -> None:
    """The pictures that are kept: a pass, the finished layer, main with its layers folded, the roofline, 1000 ops."""
    probe = opened(browser, model, "")
    names = probe.eval_on_selector_all("#steps .step-name", "all => all.map((each) => each.textContent)")
    probe.context.close()
    steps = {f"{{{name}}}": str(number) for number, name in enumerate(names)}
    for name, place, colours, keys in SHOTS:
        for mark, number in steps.items():
            place = place.replace(mark, number)
        page = opened(browser, model, place, colours)
        for key in keys:
            page.keyboard.press(key)
        save(page, name)
    page = opened(browser, large, "#decode/1/main/", "dark")
    save(page, "thousand")


def save(page: Page, name: str) -> None:
    """The page as it is once nothing moves."""
    page.wait_for_timeout(400)
    page.screenshot(path=OUT / f"{name}.png")
    page.context.close()


if __name__ == "__main__":
    main()
