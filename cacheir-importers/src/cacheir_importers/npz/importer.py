"""Opens an NPZ file as a model: config.json and tokenizer lie beside it, tensors are called as in Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError
from cacheir.models.imported import ImportedModel
from cacheir_importers.huggingface.importer import CONFIG_FILE, import_checkpoint
from cacheir_importers.npz.checkpoint import open_npz


def import_npz(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The model whose weights the file at ``path`` holds. Raises as the importer of folders does."""
    if not (path.parent / CONFIG_FILE).exists():
        raise MalformedModelError(
            f"there is no {CONFIG_FILE} beside {path.name}, so nothing says which model its weights are of"
        )
    return import_checkpoint(path.parent, lambda folder: open_npz(path), options, importer="npz")
