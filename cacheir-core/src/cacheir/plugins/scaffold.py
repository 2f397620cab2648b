"""``cacheir plugins new KIND NAME``: writes a plugin that works, with its test."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from string import Template

from cacheir import __version__
from cacheir.errors import UsageError
from cacheir.plugins.scaffold_templates import MODULES, PROJECT, README, TEST, TESTS

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_plugin(kind: str, name: str, folder: Path) -> Path:
    """Write the plugin ``name`` that adds one ``kind`` to ``folder``; gives the new folder, ``cacheir-NAME``.

    Raises ``UsageError`` for an unknown kind, a name that is none, and a folder that is there already.
    """
    if kind not in MODULES:
        close = get_close_matches(kind, MODULES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(MODULES))}"
        raise UsageError(f"there is no template for a plugin with a {kind!r}", hint=hint)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a plugin", hint="lower case words joined by '-': drop-reshape")
    name = name.removeprefix("cacheir-")
    target = folder / f"cacheir-{name}"
    if target.exists():
        raise UsageError(f"{target} is there already", hint="choose another name, or another folder with --in")
    word = name.replace("-", "_")
    major, minor = __version__.split(".")[:2]
    values = {
        "kind": kind.replace("-", " "),
        "name": name,
        "word": word,
        "module": f"cacheir_{word}",
        "imports": "PluginTests, plugin_host" if kind in TESTS else "PluginTests",
        "low": f"{major}.{minor}",
        "high": f"{major}.{int(minor) + 1}" if major == "0" else str(int(major) + 1),
    }
    files = {
        "pyproject.toml": PROJECT,
        "README.md": README,
        f"src/cacheir_{word}.py": MODULES[kind],
        "tests/test_plugin.py": TEST + TESTS.get(kind, ""),
    }
    for path, text in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return target
