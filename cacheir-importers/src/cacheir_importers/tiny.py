"""Tiny random models as Hugging Face folders, for tests and first steps; mistakes in the maths change their tokens."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer

from cacheir.errors import UsageError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.plugins.ref import resolve
from cacheir_importers.family_table import families
from cacheir_importers.tiny_config import TINY_FAMILIES, TINY_SEEDS, TinyShape, tiny_config
from cacheir_importers.tiny_tokenizer import BOS_ID, EOS_ID, train_tokenizer, write_tokenizer
from cacheir_importers.tiny_weights import random_weights

# The Llama's seed: its greedy answers to CLEAR_PROMPTS lead by more than 0.1 at each of 64 tokens (float32 gives 3e-5).
DEFAULT_SEED = TINY_SEEDS["llama"]
CLEAR_PROMPTS = ("CacheIR", "Hello", "The same prompt")


def write_tiny(
    folder: Path,
    *,
    family: str = "llama",
    seed: int | None = None,
    shape: TinyShape | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Write a model to ``folder``, whole or not at all, and give the shapes of its tensors.

    ``seed`` None is the family's own, whose answers lead clearly. ``changes`` are put over its config.json, None for a
    field that goes. Equal arguments give equal bytes. UsageError
    where the folder holds something already, or for an unknown family.
    """
    shape = shape or TinyShape()
    if family not in TINY_FAMILIES:
        raise UsageError(f"there is no tiny model of family {family!r}", hint=f"there are: {', '.join(TINY_FAMILIES)}")
    tokenizer = train_tokenizer(shape.vocab)  # refuses a bad size before weights of that size are made
    config = {**tiny_config(family, shape), **dict(changes or {})}
    config = {key: value for key, value in config.items() if value is not None or key not in (changes or {})}
    (record,) = (record for record in families() if record.name == family)
    spec: DecoderSpec = resolve(record.config)(config)
    tensors = random_weights(
        spec, resolve(record.names)(spec, "huggingface"), TINY_SEEDS[family] if seed is None else seed
    )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and is not an empty folder", hint="name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_files(unfinished, config, tensors, tokenizer)
        unfinished.chmod(0o755)  # mkdtemp makes folders that only the owner may read
        if folder.exists():
            folder.rmdir()
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {name: tensor.shape for name, tensor in tensors.items()}


def _write_files(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], tokenizer: Tokenizer) -> None:
    write_tokenizer(folder, tokenizer)
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    write_json(folder / "config.json", {**config, **ids})
    write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A JSON file as people like to read it."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
