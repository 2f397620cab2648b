"""Writes a program as one HTML page that needs nothing else: no network, no other file, no markup from the model."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import string
from importlib.resources import files
from typing import Any

from cacheir.exporters.page_data import PageInput, page_data

# In the order in which they are joined; each is one subject of the page.
_SCRIPTS = ("model.js", "dom.js", "layout.js", "graph.js", "panels.js", "charts.js", "search.js", "main.js")


def html_page(page: PageInput) -> str:
    """The page as text.

    The data is JSON in which every ``<``, ``>`` and ``&`` is escaped, so that no name in it can end the element that
    holds it; the page makes text of names and never markup. Its policy allows the two inline blocks by their hashes
    and nothing from anywhere. Raises ArtifactDamagedError where a recorded diff does not fit.
    """
    style = _part("style.css")
    script = '(() => {\n"use strict";\n' + "\n".join(map(_part, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return string.Template(_part("index.html")).substitute(
        title=html.escape(f"{page.title} · CacheIR"),
        policy=html.escape(policy),
        style=style,
        data=_inert_json(page_data(page)),
        script=script,
    )


def _part(name: str) -> str:
    return (files("cacheir.exporters") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def _inert_json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
