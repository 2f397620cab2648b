"""What plugins said about commands, kept on disk so that ``cacheir --help`` imports none of them.

The file is keyed by everything that could change the answer: Python, the installed distributions, the choice of
plugins, and the state (names, sizes, times) of each plugin's source files, so that an edited plugin is noticed. The
key is compared whole; the file's name only keeps environments apart. A file that cannot be read, or that does not
look as it should, counts as absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cacheir import settings
from cacheir.plugins.distributions import EntryPoint, entry_points, installed

if TYPE_CHECKING:
    from pathlib import Path

    from cacheir.plugins.installation import Installation

_FORMAT = 1
_MOST_FILES = 16  # environments that are remembered

_VARIABLES = ("CACHEIR_PLUGINS", "CACHEIR_BLOCK_PLUGINS", "CACHEIR_PLUGIN_MODULES", "CACHEIR_STRICT_PLUGINS")

Key = list[Any]


class Command(NamedTuple):
    """A command as the help page and the dispatcher need it."""

    name: str
    help: str
    app: str
    group: str
    plugin: str


class Survey(NamedTuple):
    """The commands of all plugins, and the lines about bad ones: pairs of plugin name and line."""

    commands: tuple[Command, ...]
    problems: tuple[tuple[str, str], ...]


def current_key() -> Key:
    """The key of this moment: a JSON value. Reads folders and file times, imports nothing."""
    found = installed()
    points = entry_points(found)
    modules = (os.environ.get("CACHEIR_PLUGIN_MODULES") or "").split(",")
    targets = [point.target for point in points] + [entry.rpartition("=")[2].strip() for entry in modules]
    roots = sorted({"cacheir", *(target.partition(":")[0].partition(".")[0] for target in targets)} - {""})
    return [
        _FORMAT,
        [sys.version, sys.prefix],
        [os.environ.get(name) for name in _VARIABLES],
        sorted(f"{distribution.name} {distribution.version}" for distribution in found),
        [list(_point_key(point)) for point in points],
        [[root, source_stamp(root)] for root in roots],
    ]


def read(key: Key) -> Survey | None:
    """What was kept under ``key``, None where there is nothing."""
    try:
        with open(_file(), encoding="utf-8") as file:
            kept = json.load(file)
        if kept["key"] != key:
            return None
        commands = tuple(Command(*_strings(row, 5)) for row in kept["commands"])
        problems = tuple((row[0], row[1]) for row in (_strings(row, 2) for row in kept["problems"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Survey(commands, problems)


def write(key: Key, survey: Survey) -> bool:
    """Keep ``survey``, atomically. False where the cache folder cannot be written, which costs only time."""
    path = _file()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    text = json.dumps({"key": key, "commands": survey.commands, "problems": survey.problems})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
        _forget_oldest(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        return False
    return True


def take(installation: Installation) -> Survey:
    """Ask every plugin for its commands."""
    from cacheir.plugins.host import report_line

    commands = tuple(
        Command(spec.name, spec.help, spec.app, spec.group or plugin.distribution or plugin.name, plugin.name)
        for spec, plugin in ((item.spec, item.plugin) for item in installation.commands.contributions)
    )
    problems = []
    for plugin in installation.plugins:
        lasting = [problem.sentence for problem in plugin.problems if not problem.is_passing]
        if lasting:
            problems.append((plugin.name, report_line(plugin, lasting[0])))
    return Survey(commands, tuple(problems))


def source_stamp(root: str) -> str:
    """The state of a top-level package's or module's files, by name, size and time; "" where it cannot be found."""
    place = _find(root)
    if place is None:
        return ""
    stamp = 0
    for line in sorted(_files(place)):
        stamp = zlib.crc32(line.encode(), stamp)
    return f"{stamp:08x}"


def _find(root: str) -> str | None:
    for entry in sys.path:
        folder = os.path.join(entry or os.getcwd(), root)
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            return folder
        if os.path.isfile(folder + ".py"):
            return folder + ".py"
    # An editable install may be found through an import hook; asking for a top-level name imports nothing.
    from importlib.util import find_spec

    try:
        spec = find_spec(root)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin


def _files(place: str) -> Iterator[str]:
    """One line for each Python file at or under ``place``."""
    if os.path.isfile(place):
        info = os.stat(place)
        yield f"{place} {info.st_size} {info.st_mtime_ns}"
        return
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _files(entry.path)
            elif entry.name.endswith((".py", ".so", ".pyd")):
                info = entry.stat()
                yield f"{entry.path} {info.st_size} {info.st_mtime_ns}"


def _point_key(point: EntryPoint) -> tuple[str, str, str, str]:
    return point.name, point.target, point.distribution, point.version


def _strings(row: Any, length: int) -> Sequence[str]:
    if not isinstance(row, list) or len(row) != length or not all(isinstance(item, str) for item in row):
        raise ValueError("a row of the survey is not as it should be")
    return row


def _file() -> Path:
    environment = zlib.crc32("\0".join([sys.prefix, *(os.environ.get(name, "") for name in _VARIABLES)]).encode())
    return settings.cache_dir() / "commands" / f"{environment:08x}.json"


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MOST_FILES]:
        path.unlink()
