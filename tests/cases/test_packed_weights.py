"""Blocks and packed words from bug reports, through the loaders of whole files (F01 to F10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import gguf_twin
from typer.testing import CliRunner

from cacheir.compile import compile_model
from cacheir_importers.gguf.writer import TensorData, write_gguf
from cacheir_importers.packed.unpack import unpack_awq

QS = "F0 E1 D2 C3 B4 A5 96 87 78 69 5A 4B 3C 2D 1E 0F"
LOW, HIGH = range(16), range(15, -1, -1)
# type -> one block of 32, and what is in it
BLOCKS: dict[str, tuple[str, list[float]]] = {
    "Q4_0": (f"00 3C {QS}", [q - 8 for q in (*LOW, *HIGH)]),
    "Q4_1": (f"00 38 00 C0 {QS}", [q / 2 - 2 for q in (*LOW, *HIGH)]),
    "Q5_0": (
        f"00 3C 01 00 01 00 {QS}",
        [q + (16 if place in (0, 16) else 0) - 16 for place, q in enumerate((*LOW, *HIGH))],
    ),
    "Q5_1": (
        f"00 38 00 C0 01 00 01 00 {QS}",
        [(q + (16 if place in (0, 16) else 0)) / 2 - 2 for place, q in enumerate((*LOW, *HIGH))],
    ),
}
NAME, KEY = "blk.1.ffn_up.weight", "layers.1.ffn.up"


def loaded(tmp_path: Path, folder: Path, kind: str, block: bytes, shape: tuple[int, int], **more: Any) -> Any:
    """The values of the tensor NAME of a file in which it consists of copies of ``block``, f32 of ``shape``."""
    metadata, tensors = gguf_twin(folder)
    count = len(tensors[NAME].data) // 4 // {"Q4_K": 256}.get(kind, 32)
    assert tensors[NAME].shape == shape
    tensors[NAME] = TensorData(kind, shape, block * count)
    write_gguf(tmp_path / "a.gguf", {**metadata, **more}, tensors)
    return compile_model(tmp_path / "a.gguf").open_weights().get(f'stored "{KEY}"').dense()


@pytest.mark.parametrize("kind", ["Q4_0"])
def test_f01_low_nibbles_come_first(tmp_path: Path, tiny_folder: Path, kind: str) -> None:
    block, expected = BLOCKS[kind]
    assert expected[:3] == [-8, -7, -6] and expected[15:18] == [7, 7, 6] and expected[-1] == -8
    found = loaded(tmp_path, tiny_folder, kind, bytes.fromhex(block), (128, 64))
    np.testing.assert_array_equal(found, np.tile(np.array(expected, np.float32), (128, 2)))


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q5_1"])
def test_f02_minima_are_added_and_fifth_bits_are_one_word(tmp_path: Path, tiny_folder: Path, kind: str) -> None:
    block, expected = BLOCKS[kind]
    begins = {"Q4_1": [-2, -1.5], "Q5_0": [0, -15, -14], "Q5_1": [6, -1.5, -1]}[kind]
    assert expected[: len(begins)] == begins
    found = loaded(tmp_path, tiny_folder, kind, bytes.fromhex(block), (128, 64))
    np.testing.assert_array_equal(found, np.tile(np.array(expected, np.float32), (128, 2)))


def test_f04_upper_bits_of_scales_and_minima(tmp_path: Path) -> None:
    from cacheir_importers.tiny import write_tiny
    from cacheir_importers.tiny_config import TinyShape

    write_tiny(tmp_path / "model", shape=TinyShape(hidden=256, heads=4, kv_heads=2, head_dim=64, feed_forward=256))
    block = bytes.fromhex("00 3C 00 38 C1 02 03 04 8A 14 1E 28 21 43 65 07" + "21" * 128)
    found = loaded(tmp_path, tmp_path / "model", "Q4_K", block, (256, 256))
    expected = np.repeat(np.array([-4, -6, -12, -12, 32, 4, 2, 14], np.float32), 32)
    np.testing.assert_array_equal(found, np.tile(expected, (256, 1)))


def test_f10_the_order_of_awq_and_a_file_that_only_says_so() -> None:
    """A twin in plain order cannot be told from a right one: docs/checkpoints.md says which order is read."""
    zeros, scales = np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16)

    def columns(word: int, held: Any = zeros) -> list[float]:
        words = np.full((8, 1), word, np.uint32).view(np.int32)
        found: list[float] = unpack_awq(words, held, scales, dtype="f32", shape=(8, 8), group=8)[:, 0].tolist()
        return found

    assert columns(0x75316420) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert columns(0x76543210) == [0, 4, 1, 5, 2, 6, 3, 7]
    # Zero points are packed in the same order, each column with its own.
    assert columns(0, np.full((1, 1), 0x75316420, np.uint32).view(np.int32)) == [0, -1, -2, -3, -4, -5, -6, -7]
    docs = (Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md").read_text()
    assert "the columns 0, 2, 4, 6, 1, 3, 5, 7" in docs


def test_f10_no_command_promises_awq_by_its_name() -> None:
    """``int4_awq`` of our own would suggest files that others can read."""
    from cacheir.cli.compile import app

    said = CliRunner().invoke(app, ["--help"]).output
    assert "--quant" in said and "awq" not in said.lower()
