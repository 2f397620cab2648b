"""A plugin's files as one hash: from its RECORD where it was installed, from its source tree while it is edited."""

from __future__ import annotations

import csv
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cacheir.artifact.lock import PluginLock
from cacheir.artifact.seal import digest
from cacheir.errors import ArtifactError
from cacheir.plugins.installation import Installation
from cacheir.plugins.plugin import Plugin
from cacheir.plugins.specs import BackendSpec
from cacheir.weights.atomic_file import write_file

# Registering one of these can change what a compile makes. Kernels count only for the targets of the backend.
_KINDS = ("ops", "passes", "importers", "families", "quant formats", "quantizers")
_SKIPPED = ("__pycache__", ".git", ".mypy_cache", ".ruff_cache")


def plugins_that_take_part(installation: Installation, backend: BackendSpec) -> list[Plugin]:
    """The plugins that can change what is compiled for ``backend``, core first.

    Others may come and go without a recompile: a server, a backend for another device.
    """
    names = {"core", installation.backends.provider(backend.name).name}
    for registry in installation.registries():
        if registry.kind.plural in _KINDS:
            names |= {contribution.plugin.name for contribution in registry.contributions}
    names |= {item.plugin.name for item in installation.kernels.contributions if item.spec.target in backend.targets}
    names |= {plugin.name for plugin in installation.host.implementers("cacheir_select_kernel")}
    return [plugin for plugin in installation.plugins if plugin.name in names]


def lock_plugin(plugin: Plugin, memo: Path | None) -> PluginLock:
    """The plugin with its fingerprint, "" for one that lives in no file. ``memo`` is a folder to remember trees in."""
    fingerprint = _from_record(plugin) or _from_tree(plugin, memo)
    return PluginLock(distribution=plugin.distribution, version=plugin.version, fingerprint=fingerprint)


def _from_record(plugin: Plugin) -> str:
    """The hash of the RECORD's lines about the package's own files; "" where RECORD does not list the package.

    The other lines differ from machine to machine: scripts, compiled files, where it was installed from.
    """
    if not plugin.folder:
        return ""
    try:
        with open(os.path.join(plugin.folder, "RECORD"), encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except (OSError, UnicodeDecodeError, csv.Error):
        return ""  # a source tree, or another tool's installation: the files themselves are hashed
    package = plugin.module.partition(".")[0]
    own = sorted(
        f"{name},{checksum}\n"
        for name, checksum, _ in rows
        if checksum and (name == f"{package}.py" or name.startswith(f"{package}/"))
    )
    return digest("".join(own).encode("utf-8")) if own else ""


def _from_tree(plugin: Plugin, memo: Path | None) -> str:
    root = _package_root(plugin)
    if root is None:
        return ""
    files = sorted(_files(root))
    listing = "".join(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\n" for name, _, status in files)
    note = memo / "fingerprints" / digest(f"{root}\n{listing}".encode())[:32] if memo else None
    if note is not None:
        try:
            kept = note.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            kept = ""
        if len(kept) == 64:
            return kept
    total = hashlib.sha256()
    for name, path, _ in files:
        total.update(f"{name}\0{digest(Path(path).read_bytes())}\n".encode())
    if note is not None:
        try:
            write_file(note, total.hexdigest().encode("ascii"))
        except ArtifactError as error:
            print(f"cacheir: {error}", file=sys.stderr)
    return total.hexdigest()


def _package_root(plugin: Plugin) -> str | None:
    """The folder of the plugin's top package, or its file where it is one module."""
    module = sys.modules.get(plugin.module.partition(".")[0])
    places = list(getattr(module, "__path__", ()))
    return places[0] if places else getattr(module, "__file__", None)


def _files(root: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """(name inside the root, path, status) of each file that is not made by running the program."""
    if os.path.isfile(root):
        yield os.path.basename(root), root, os.stat(root)
        return
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED:
                        waiting.append(entry.path)
                elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
                    yield entry.path[len(root) + 1 :].replace(os.sep, "/"), entry.path, entry.stat()
