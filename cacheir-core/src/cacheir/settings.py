"""Every ``CACHEIR_*`` variable that core reads: its name, type, default and meaning. A bad value is an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cacheir.errors import UsageError
from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True)
class Setting:
    """One variable. ``kind`` is ``flag``, ``name``, ``names``, ``path``, ``count`` or ``gigabytes``."""

    name: str
    kind: str
    default: str
    meaning: str


SETTINGS = (
    Setting("CACHEIR_PLUGINS", "names", "all that are installed", "load these plugins and no others (core always)"),
    Setting("CACHEIR_BLOCK_PLUGINS", "names", "", "leave these plugins out"),
    Setting(
        "CACHEIR_PLUGIN_MODULES", "names", "", "modules to load as plugins, without entry points: module or name=module"
    ),
    Setting("CACHEIR_STRICT_PLUGINS", "flag", "0", "any problem with a plugin is an error"),
    Setting(
        "CACHEIR_CACHE_DIR", "path", "the platform's cache folder", "where artifacts and what plugins said are kept"
    ),
    Setting("CACHEIR_CACHE_LIMIT_GB", "gigabytes", "20", "the size at which the oldest cached artifacts are dropped"),
    Setting("CACHEIR_BACKEND", "name", "auto", "the backend of models for which none was named; auto takes the best"),
    Setting("CACHEIR_THREADS", "count", "0", "threads of a backend; 0 means as many as the process may use"),
    Setting("CACHEIR_API_KEY", "name", "", "the key of a server: cacheir serve demands it, cacheir incident sends it"),
    Setting("CACHEIR_CHECK_TEXT", "flag", "0", "re-parse the text of each graph after each pass"),
)


def flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a flag is on. ``1 true yes on`` and ``0 false no off`` are the spellings; else ``UsageError``."""
    text = _text(name, "flag", environ).strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise _bad(name, environ, "must be 1 or 0")


def name(variable: str, environ: Mapping[str, str] = os.environ) -> str:
    """The one name that a variable holds, its default where it is not set or empty."""
    return _text(variable, "name", environ).strip() or _declared(variable, "name").default


def names(name: str, environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The comma-separated names that a variable holds; None where it is not set, () where it is empty."""
    _declared(name, "names")
    if name not in environ:
        return None
    return tuple(part.strip() for part in environ[name].split(",") if part.strip())


def count(name: str, environ: Mapping[str, str] = os.environ) -> int:
    """A whole number that is not negative."""
    text = _text(name, "count", environ)
    if not text.isascii() or not text.isdigit():
        raise _bad(name, environ, "must be a whole number, 0 or more")
    return int(text)


def gigabytes(name: str, environ: Mapping[str, str] = os.environ) -> float:
    """A size in units of 10**9 bytes, above 0."""
    try:
        size = float(_text(name, "gigabytes", environ))
    except ValueError:
        raise _bad(name, environ, "must be a number of gigabytes") from None
    if not 0 < size < float("inf"):
        raise _bad(name, environ, "must be a number of gigabytes above 0")
    return size


def cache_dir(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The folder that caches live in: ``CACHEIR_CACHE_DIR``, or ``cacheir`` in the platform's cache folder.

    The folder need not exist. A relative or an empty path is an error, since the cache would move with each command.
    """
    if "CACHEIR_CACHE_DIR" in environ:
        given = Path(environ["CACHEIR_CACHE_DIR"]).expanduser()
        if not given.is_absolute():
            raise _bad("CACHEIR_CACHE_DIR", environ, "must be an absolute path")
        return given
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or "~").expanduser()
    if platform == "darwin":
        return home / "Library" / "Caches" / "cacheir"
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "cacheir" / "Cache"
    root = Path(environ.get("XDG_CACHE_HOME") or "")
    # The base directory specification says that a relative path there is to be ignored.
    return (root if root.is_absolute() else home / ".cache") / "cacheir"


def _declared(name: str, kind: str) -> Setting:
    for setting in SETTINGS:
        if setting.name == name and setting.kind == kind:
            return setting
    raise KeyError(f"{name} is not declared in cacheir.settings as {kind}")


def _text(name: str, kind: str, environ: Mapping[str, str]) -> str:
    return environ.get(name, _declared(name, kind).default)


def _bad(name: str, environ: Mapping[str, str], rule: str) -> UsageError:
    meaning = next(setting.meaning for setting in SETTINGS if setting.name == name)
    return UsageError(f"{name} {rule}, not {environ.get(name, '')!r}", hint=f"{name}: {meaning}")
