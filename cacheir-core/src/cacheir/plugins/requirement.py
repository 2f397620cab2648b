"""Explains a failed import by the versions that are installed and those that are required.

Reads what distributions declare (``Requires-Dist``) instead of guessing from messages.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from types import ModuleType

from cacheir.plugins.distributions import Distribution, installed, normalise, requirements
from cacheir.plugins.versions import satisfies


@dataclass(frozen=True)
class Requirement:
    """One ``Requires-Dist`` line. ``extra`` is the extra it belongs to, "" where it always holds."""

    name: str
    specifier: str  # ">=1.2,<2", "" for any version
    extra: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.specifier}"


_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;\s*(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def parse_requirement(line: str) -> Requirement | None:
    """Read a ``Requires-Dist`` line; None for one with a marker other than ``extra``, which may not hold here."""
    match = _LINE.fullmatch(line.strip())
    if match is None or "@" in line:
        return None
    name, specifier, marker = match.groups()
    extra = ""
    if marker:
        named = _EXTRA.fullmatch(marker.strip())
        if named is None:
            return None
        extra = named.group(1)
    return Requirement(normalise(name), specifier.replace(" ", ""), extra)


def unmet(requirement: Requirement, distributions: Sequence[Distribution] | None = None) -> str:
    """What is wrong with what is installed, "" where the requirement is met: ``needs numpy>=2, found 1.26.4``."""
    for distribution in installed() if distributions is None else distributions:
        if distribution.name == requirement.name:
            if satisfies(distribution.version, requirement.specifier):
                return ""
            return f"needs {requirement}, found {distribution.version}"
    return f"needs {requirement}, which is not installed"


def unmet_by(error: BaseException) -> str:
    """The unmet requirement that explains a failed import, "" where none does.

    The code that failed is found in the traceback, its distribution by its package's name, and of that one's
    requirements those on the package that the import or the missing attribute was about.
    """
    return "; ".join(unmet(requirement) for requirement in unmet_requirements(error))


def how_to_install(error: BaseException) -> str:
    """The command that would meet what ``unmet_by`` names, "" where it names nothing."""
    return install_command(unmet_requirements(error))


def install_command(wanted: Sequence[Requirement]) -> str:
    """The pip command for ``wanted``, "" for nothing. Packages of this tree come from a checkout and from no index."""
    if not wanted:
        return ""
    own = [requirement for requirement in wanted if requirement.name.split("-")[0] == "cacheir"]
    parts = [f"./{requirement.name}" if requirement in own else f"'{requirement}'" for requirement in wanted]
    return "pip install " + " ".join(parts) + (" in a checkout of CacheIR" if own else "")


def unmet_requirements(error: BaseException) -> list[Requirement]:
    """The declared requirements that explain a failed import, those of the code that failed first."""
    about = _package_of(error)
    if not about:
        return []
    distributions = installed()
    providers = _providers(tuple(distributions))
    names = {normalise(name) for name in (about, *providers.get(about, ()))}
    needed: dict[str, Requirement] = {}
    for owner in _owners(error, distributions, providers):
        for requirement in filter(None, map(parse_requirement, requirements(owner))):
            if requirement.name in names and unmet(requirement, distributions):
                needed.setdefault(requirement.name, requirement)
    return list(needed.values())


def _package_of(error: BaseException) -> str:
    """The top-level package that could not be imported, or that does not have a name; "" where it is about none."""
    name = None
    if isinstance(error, ImportError):
        name = error.name
    elif isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        name = error.obj.__name__
    return (name or "").partition(".")[0]


@lru_cache(maxsize=2)
def _providers(distributions: tuple[Distribution, ...]) -> Mapping[str, list[str]]:
    """Import name -> distributions. Reading it takes half a second, so it is kept for as long as nothing changes."""
    return metadata.packages_distributions()


def _owners(
    error: BaseException, distributions: Sequence[Distribution], providers: Mapping[str, list[str]]
) -> list[Distribution]:
    """The distributions whose code was being imported, innermost first, core last: its frames are on each traceback."""
    names: list[str] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        # An editable install does not list its modules; its distribution has its package's name.
        names[:0] = [normalise(name) for name in (*providers.get(root, ()), root)]
    by_name = {distribution.name: distribution for distribution in distributions}
    ordered = [*(name for name in names if name != "cacheir-core"), "cacheir-core"]
    return [by_name[name] for name in dict.fromkeys(ordered) if name in by_name]
