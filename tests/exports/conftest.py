"""A headless Chromium without a network, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_MS = 240_000  # a busy machine may leave the browser waiting; what hangs still ends


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium through Playwright; skips, with what to do, where one of them is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make view-check")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """``open_page(file, "#decode/3/main/", "dark")``: the page, offline; fails at the end for any error or request."""
    contexts, complaints = [], []

    def open_(file: Path, place: str = "", colours: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme=colours, offline=True, reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda said: complaints.append(f"console: {said.text}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: None if request.url.split("#")[0] == file.as_uri() else complaints.append(request.url),
        )
        page.goto(file.as_uri() + place)
        page.wait_for_selector("g.op")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints
