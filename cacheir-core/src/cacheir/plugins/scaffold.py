"""``cacheir plugins new KIND NAME``: writes a plugin that works, with its test.

The texts lie in ``templates/KIND/``, those of every project in ``templates/common/``. ``module.py.txt`` becomes the
plugin's one module. Where there is ``plugin.py.txt`` instead, the plugin is a package, and every other file but those
that begin with ``test_`` is a module of it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from string import Template

from cacheir import __version__
from cacheir.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
_COMMON = "common"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def kinds() -> list[str]:
    """The kinds of plugins that there is a template for, sorted."""
    return sorted(folder.name for folder in TEMPLATES.iterdir() if folder.is_dir() and folder.name != _COMMON)


def write_plugin(kind: str, name: str, folder: Path) -> Path:
    """Write the plugin ``name`` that adds one ``kind`` to ``folder``; gives the new folder, ``cacheir-NAME``.

    Raises ``UsageError`` for an unknown kind, a name that is none, and a folder that is there already.
    """
    if kind not in kinds():
        close = get_close_matches(kind, kinds(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(kinds())}"
        raise UsageError(f"there is no template for a plugin with a {kind!r}", hint=hint)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a plugin", hint="lower case words joined by '-': drop-reshape")
    name = name.removeprefix("cacheir-")
    target = folder / f"cacheir-{name}"
    if target.exists():
        raise UsageError(f"{target} is there already", hint="choose another name, or another folder with --in")
    for path, text in _files(kind, name).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")
    return target


def _files(kind: str, name: str) -> dict[str, str]:
    """Path in the project -> text."""
    module = f"cacheir_{name.replace('-', '_')}"
    is_package = (TEMPLATES / kind / "plugin.py.txt").exists()
    major, minor = __version__.split(".")[:2]
    values = {
        "kind": kind.replace("-", " "),
        "name": name,
        "word": name.replace("-", "_"),
        "module": module,
        "plugin": f"{module}.plugin" if is_package else module,
        "source": module if is_package else f"{module}.py",
        "low": f"{major}.{minor}",
        "high": f"{major}.{int(minor) + 1}" if major == "0" else str(int(major) + 1),
    }
    places = {path.name.removesuffix(".txt"): path for path in sorted((TEMPLATES / _COMMON).iterdir())}
    for path in sorted((TEMPLATES / kind).iterdir()):
        file = path.name.removesuffix(".txt")
        if file.startswith("test_"):
            places[f"tests/{file}"] = path
        else:
            places[f"src/{module}/{file}" if is_package else f"src/{module}.py"] = path
    texts = {place: Template(path.read_text(encoding="utf-8")).substitute(values) for place, path in places.items()}
    if is_package:
        texts[f"src/{module}/__init__.py"] = f'"""A CacheIR plugin: the {values["kind"]} {name}."""\n'
    return texts
