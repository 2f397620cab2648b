"""A saved session on real pools: the answer goes on bit for bit, for one program and its weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.errors import UsageError
from cacheir_importers.tiny import write_tiny

IDS = [3 + (index * index * 5 + 11 * index) % 280 for index in range(45)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("saved") / "model"
    write_tiny(place, family="mistral")
    return place


def options(backend: str, kv_dtype: str) -> dict[str, Any]:
    return {"backend": backend, "kv_dtype": kv_dtype, "batch_invariant": backend == "cpu", "max_seq": 96}


@pytest.mark.parametrize("backend", ["cpu", "native"])
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16"])
def test_logits_after_a_restore_have_the_same_bits(folder: Path, tmp_path: Path, backend: str, kv_dtype: str) -> None:
    with Runtime(folder, **options(backend, kv_dtype)) as runtime, runtime.session() as session:
        session.append(IDS)
        session.prefill()
        session.save(tmp_path / "saved")
        session.append([7, 8])
        expected = session.logits()
    with Runtime(folder, **options(backend, kv_dtype)) as runtime, runtime.session() as other:
        other.append(IDS[:20])
        other.prefill()  # so that the pages are others
        with runtime.restore(tmp_path / "saved") as session:
            assert session.cached_tokens == len(IDS)
            session.append([7, 8])
            assert session.logits().tobytes() == expected.tobytes()


def test_other_weights_of_the_same_shapes_refuse(folder: Path, tmp_path: Path) -> None:
    with Runtime(folder, **options("cpu", "f32")) as runtime, runtime.session() as session:
        session.append(IDS)
        session.prefill()
        session.save(tmp_path / "saved")
    other = tmp_path / "other"
    write_tiny(other, family="mistral")
    weights = next(other.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    last = np.frombuffer(bytes(data[-4:]), np.uint8) ^ 1
    data[-4:] = last.tobytes()
    weights.write_bytes(data)
    with (
        Runtime(other, **options("cpu", "f32")) as runtime,
        pytest.raises(UsageError, match="the weights"),
    ):
        runtime.restore(tmp_path / "saved")


def test_formats_with_scales_of_their_own_refuse(folder: Path, tmp_path: Path) -> None:
    with Runtime(folder, **options("cpu", "int8")) as runtime, runtime.session() as session:
        with pytest.raises(UsageError, match="int8"):
            session.save(tmp_path / "saved")
        assert not list(tmp_path.iterdir())
