"""Tile choices of the Triton products by measurement: JSON rows for each device, found by key, else a default and why.

A row says for which product it is (``count`` x ``width`` and up to ``rows`` rows), on which device, with which Triton
and from which source it was timed, and all samples. One whose Triton or source is another is not taken: its times are
of other code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cacheir.errors import UsageError
from cacheir.weights.atomic_file import write_file

FORMAT = 1
FILE_VARIABLE = "CACHEIR_CUDA_TUNED"
# What reading a damaged table may raise.
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, UsageError)
SOURCE = Path(__file__).resolve().parent / "kernels" / "triton_tiles.py"
BUCKETS = (16, 32, 64)  # rows that a program takes at once


@dataclass(frozen=True, order=True)
class TileConfig:
    """``rows_of_matrix`` rows a program, ``columns`` at a time, and how Triton compiles it."""

    rows_of_matrix: int = 64
    columns: int = 128
    warps: int = 4
    stages: int = 3

    def __post_init__(self) -> None:
        sizes = (self.rows_of_matrix, self.columns, self.warps)
        powers = all(value > 0 and value & (value - 1) == 0 for value in sizes)
        if not powers or not 16 <= self.rows_of_matrix <= 256 or 128 % self.columns or self.columns < 16:
            raise UsageError(f"{self} is no tile: powers of two, columns that divide 128")
        if not 1 <= self.warps <= 16 or not 1 <= self.stages <= 8:
            raise UsageError(f"{self} is no tile: 1 to 16 warps, 1 to 8 stages")


@dataclass(frozen=True)
class TunedRow:
    """The fastest config for a key, with what it was timed by. ``samples_s`` are seconds of one launch each."""

    count: int
    width: int
    rows: int
    dtype: str
    device: str
    toolchain: str
    source: str
    config: TileConfig
    samples_s: tuple[float, ...] = field(default=())

    @property
    def key(self) -> tuple[object, ...]:
        return (self.count, self.width, self.rows, self.dtype, self.device)


def default_config(rows: int) -> TileConfig:
    """What is taken where nothing was measured."""
    return TileConfig(stages=4 if rows <= 32 else 3)


def choose(
    table: Sequence[TunedRow], *, count: int, width: int, rows: int, dtype: str, device: str
) -> tuple[TileConfig, str]:
    """The config for a product, and why it is the default: "" where a row of ``table`` says it."""
    key = (count, width, rows, dtype, device)
    found = [row for row in table if row.key == key]
    for row in found:
        if (row.toolchain, row.source) == (toolchain(), source_hash()):
            return row.config, ""
    where = f"{count} x {width}, up to {rows} rows of {dtype} on {device}"
    why = "was timed with another Triton or source" if found else "was not timed"
    return default_config(rows), f"{where} {why} (cacheir tune)"


def read_table(path: Path) -> tuple[TunedRow, ...]:
    """The rows of a file that ``write_table`` wrote. Raises UsageError for anything else."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise ValueError(f"format {held['format']!r} is not {FORMAT}")
        return tuple(_row(each) for each in held["rows"])
    except DAMAGE as error:
        raise UsageError(f"{path} is no table of tuned tiles: {error}", hint="cacheir tune writes one") from error


def write_table(path: Path, rows: Sequence[TunedRow], besides: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write ``rows`` in order of their keys, whole or not at all, and ``besides`` (``product_plans``) with them.

    Raises ArtifactError where it cannot be written.
    """
    ordered = sorted(rows, key=lambda row: tuple(map(str, row.key)))
    text = json.dumps({"format": FORMAT, "rows": [asdict(row) for row in ordered], **besides}, indent=1) + "\n"
    write_file(path, text.encode())


def merged(before: Sequence[TunedRow], rows: Sequence[TunedRow]) -> list[TunedRow]:
    """``rows``, and those of ``before`` with other keys."""
    fresh = {row.key for row in rows}
    return [*(row for row in before if row.key not in fresh), *rows]


@lru_cache(maxsize=1)
def installed_table() -> tuple[TunedRow, ...]:
    """The rows of the file that ``CACHEIR_CUDA_TUNED`` names, none without it."""
    named = os.environ.get(FILE_VARIABLE)
    return read_table(Path(named)) if named else ()


@lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 of the kernels' source, the first 16 digits."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]


def toolchain() -> str:
    """Triton's version."""
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        return "no triton"


def _row(held: Mapping[str, Any]) -> TunedRow:
    names = {each.name for each in fields(TunedRow)}
    if set(held) != names:
        raise ValueError(f"a row has {sorted(held)}, not {sorted(names)}")
    count, width, rows = (held[name] for name in ("count", "width", "rows"))
    if not all(type(number) is int and number > 0 for number in (count, width, rows)):
        raise ValueError(f"{count} x {width} and {rows} rows are no sizes")
    dtype, device, made_by, source = (str(held[name]) for name in ("dtype", "device", "toolchain", "source"))
    samples = read_samples(held["samples_s"])
    return TunedRow(count, width, rows, dtype, device, made_by, source, _config(held["config"]), samples)


def _config(held: Mapping[str, Any]) -> TileConfig:
    """The tile of a row. No size is filled in or rounded: such a tile was not timed."""
    names = {each.name for each in fields(TileConfig)}
    if set(held) != names or not all(type(held[name]) is int for name in names):
        raise ValueError(f"{held} is no tile: {', '.join(sorted(names))}, integers")
    return TileConfig(**held)


def read_samples(held: Any) -> tuple[float, ...]:
    """Seconds of launches as a table holds them. ValueError where one is no time."""
    if not isinstance(held, list) or not all(type(each) in (int, float) for each in held):
        raise ValueError(f"{held!r} are no samples")
    seconds = tuple(map(float, held))
    if not all(0 <= each < math.inf for each in seconds):
        raise ValueError(f"{held} are no seconds: finite and none below 0")
    return seconds
