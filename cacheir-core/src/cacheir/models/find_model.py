"""Finds a model: a named one, a file or a folder, and the importer that takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cacheir.arguments import checked_place
from cacheir.errors import CacheIRError, ModelError, NoImporterError, PluginError, UsageError
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import ImporterSpec
from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True)
class ModelSource:
    """A model that was found and not opened yet. ``name`` is what the user called it."""

    path: Path
    importer: ImporterSpec
    name: str


def find_path(model: str | Path, installation: Installation) -> Path:
    """The file or folder of ``model``: a path that exists, else a named model.

    Raises UsageError where it is neither, or the named model's distribution is not installed.
    """
    path = Path(checked_place("model", model))
    if not str(model):  # as a path that would be the current folder
        raise UsageError("the model's name is empty", hint="give a folder, a file, or a name; . is the current folder")
    if _is_there(path):
        return path.absolute()
    named = installation.models.find(str(model)) if isinstance(model, str) else None
    if named is not None:
        found = resolve(named.find)()
        if not isinstance(found, Path) or not found.exists():
            raise PluginError(f"model {named.name!r}: find() gave {found!r}, where nothing is")
        return found.absolute()
    names = ", ".join(installation.models.names()) or "none"
    raise UsageError(
        f"there is no model at {model}, and no named model {str(model)!r} (there are: {names})",
        hint="give a folder with config.json, a .gguf file, an artifact, or a name that `cacheir models` lists",
    )


def find_importer(path: Path, installation: Installation) -> ImporterSpec:
    """The importer that takes ``path``: by suffix or marker file first, then those that look into the file.

    Raises NoImporterError with what each importer said.
    """
    said: dict[str, str] = {}
    importers = list(installation.importers)
    for importer in sorted(importers, key=lambda importer: not _looks_right(importer, path)):
        reason = _refusal(importer, path)
        if not reason:
            return importer
        said[importer.name] = reason
    answers = "; ".join(f"{name}: {reason}" for name, reason in said.items()) or "no importer is installed"
    raise NoImporterError(
        f"no importer takes {path} ({answers})",
        hint="cacheir plugins list --kind importers shows what is installed",
    )


def open_model(source: ModelSource, installation: Installation) -> ImportedModel:
    """Read the headers. What an importer raises that is no CacheIRError is the importer's fault and names it."""
    options: Mapping[str, Any] = {"installation": installation}
    try:
        model = resolve(source.importer.run)(source.path, options)
    except CacheIRError:
        raise
    except OSError as error:
        raise ModelError(f"{source.path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise PluginError(
            f"importer {source.importer.name!r} raised {type(error).__name__} on {source.path}: {error}",
            hint="this is a fault of the importer, not of the model; --debug shows where",
        ) from error
    if not isinstance(model, ImportedModel):
        raise PluginError(f"importer {source.importer.name!r} gave {type(model).__name__}, not an ImportedModel")
    return model


def _is_there(path: Path) -> bool:
    """Whether something is at ``path``; a name that no file can have, as one of 5000 letters, has nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _looks_right(importer: ImporterSpec, path: Path) -> bool:
    by_suffix = path.is_file() and path.suffix.lower() in importer.suffixes
    return by_suffix or (path.is_dir() and any((path / name).is_file() for name in importer.marker_files))


def _refusal(importer: ImporterSpec, path: Path) -> str:
    """Why the importer does not take ``path``, "" where it does."""
    if importer.sniff is not None and (path.is_file() or not importer.marker_files):
        try:
            reason: str | None = resolve(importer.sniff)(path)
        except CacheIRError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  a plugin's code: its fault becomes its answer
            return f"its sniff raised {type(error).__name__}: {error}"
        return reason or ""
    if _looks_right(importer, path):
        return ""
    takes = [f"{suffix} files" for suffix in importer.suffixes]
    takes += [f"folders with {name}" for name in importer.marker_files]
    return f"takes {' and '.join(takes)}"
