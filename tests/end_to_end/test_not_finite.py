"""A damaged model ends in an error, never in token 0 (case C01): by kernels, by meaning, fused or not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.errors import BackendError

WAYS: Mapping[str, CompileOptions] = {
    "the kernel": CompileOptions(),
    "the meaning": CompileOptions(kernels={"head_argmax": "reference"}),
    "unfused": CompileOptions(skip_passes=("fuse-head-argmax",)),
    "unfused, the meaning": CompileOptions(
        skip_passes=("fuse-head-argmax",), kernels={"greedy_token": "reference", "linear": "reference"}
    ),
}


@pytest.fixture
def damaged(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a NaN in its last norm."""
    folder = tmp_path / "damaged"
    shutil.copytree(tiny, folder)
    tensors = load_file(folder / "model.safetensors")
    changed: dict[str, Any] = {name: tensor.copy() for name, tensor in tensors.items()}
    changed["model.norm.weight"][3] = np.nan
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_c01_greedy(damaged: Path, way: str) -> None:
    with (
        Runtime(damaged, "cpu", compile_options=WAYS[way]) as runtime,
        pytest.raises(BackendError, match="the logits are not finite"),
    ):
        list(runtime.generate_ids([5, 6, 7], 4))
