"""Finds the installed distributions that offer plugins by reading ``*.dist-info`` folders, importing nothing.

``importlib.metadata`` does the same and takes a third of the time that ``cacheir --help`` may use; it is used here
only for what is not a folder on ``sys.path`` (a zip file). Formats: the entry points specification of the Python
Packaging Authority, and PEP 376 for the folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence

from cacheir.quick_dataclass import dataclass

GROUP = "cacheir"

# A metadata file above this size is not one; reading stops there.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class EntryPoint:
    """A plugin as installed: its name, the module (``package.module`` or ``package.module:attribute``), its package."""

    name: str
    target: str
    distribution: str
    version: str
    folder: str  # the metadata folder, "" where there is none


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its normalised name, its version as its folder spells it, and its metadata folder."""

    name: str
    version: str
    folder: str


def installed(path: Sequence[str] | None = None) -> list[Distribution]:
    """The distributions on ``path`` (default ``sys.path``); of two with one name, the one found first."""
    found: dict[str, Distribution] = {}
    for entry in dict.fromkeys(sys.path if path is None else path):
        for distribution in _in_folder(entry or os.getcwd()):
            found.setdefault(distribution.name, distribution)
    return list(found.values())


def entry_points(distributions: Sequence[Distribution] | None = None) -> list[EntryPoint]:
    """The entry points of group ``cacheir``, in the order of the distributions' names."""
    listed = installed() if distributions is None else distributions
    found = [point for distribution in listed for point in _offered_by(distribution)]
    if distributions is None:
        found += _offered_by_zip_files()
    return sorted(found, key=lambda point: (normalise(point.distribution), point.name))


def normalise(name: str) -> str:
    """A distribution's name as PEP 503 compares it: ``Cacheir_Core`` is ``cacheir-core``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(distribution: Distribution) -> tuple[str, ...]:
    """The ``Requires-Dist`` lines of a distribution, as written."""
    return tuple(value for key, value in _headers(distribution.folder) if key == "requires-dist")


def summary(folder: str) -> str:
    """The one-line summary in a metadata folder, "" where there is none."""
    return next((value for key, value in _headers(folder) if key == "summary"), "")


def _in_folder(entry: str) -> Iterator[Distribution]:
    try:
        names = sorted(os.listdir(entry))
    except OSError:
        return  # a path entry that is missing, or a zip file
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            title, _, version = name.rpartition(".")[0].partition("-")
            # An egg-info folder of a source tree has no version in its name, and may have "-py3.11" after it.
            yield Distribution(normalise(title), version.partition("-py")[0], os.path.join(entry, name))


def _offered_by(distribution: Distribution) -> Iterator[EntryPoint]:
    text = _read(os.path.join(distribution.folder, "entry_points.txt"))
    if f"[{GROUP}]" not in text:
        return
    headers = dict(reversed(list(_headers(distribution.folder))))
    name = headers.get("name", distribution.name)
    version = headers.get("version", distribution.version)
    for key, value in parse_entry_points(text):
        yield EntryPoint(key, value, name, version, distribution.folder)


def parse_entry_points(text: str) -> list[tuple[str, str]]:
    """The (name, target) pairs of group ``cacheir`` in an ``entry_points.txt``; extras behind a target are cut off."""
    pairs = []
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == GROUP and line and not line.startswith(("#", ";")):
            name, separator, target = line.partition("=")
            if separator:
                pairs.append((name.strip(), re.sub(r"\s*\[.*\]$", "", target.strip()).replace(" ", "")))
    return pairs


def _headers(folder: str) -> Iterator[tuple[str, str]]:
    """The header lines of METADATA (or PKG-INFO), keys in lower case; continuation lines are left out."""
    text = _read(os.path.join(folder, "METADATA")) or _read(os.path.join(folder, "PKG-INFO"))
    for line in text.splitlines():
        if not line:  # one of spaces alone continues a field, as a licence's text does
            return
        key, separator, value = line.partition(":")
        if separator and not line[0].isspace():
            yield key.lower(), value.strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""  # an absent file says nothing


def _offered_by_zip_files() -> Iterator[EntryPoint]:
    files = [entry for entry in sys.path if os.path.isfile(entry)]
    if not files:
        return
    from importlib import metadata

    for distribution in metadata.distributions(path=files):
        for point in distribution.entry_points:
            if point.group == GROUP:
                yield EntryPoint(point.name, point.value, distribution.metadata["Name"], distribution.version, "")
