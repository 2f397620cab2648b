"""Which launch of cuBLASLt a product of many rows takes: recorded by shape and device, else torch's own and why.

``cacheir tune`` writes a plan for each shape into the table of tuned tiles: torch's default, or the rank of a proposal
of the library's heuristic that was faster. A rank means something to the version of the library that was asked alone,
so a plan of another version is not taken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from cacheir.errors import UsageError
from cacheir_cuda.cublas_lt import MOST_PROPOSALS, LargeProduct
from cacheir_cuda.tuned_tiles import DAMAGE, FILE_VARIABLE, read_samples

SECTION = "products"
TORCH = -1  # the rank that stands for torch's own launch
_TYPES = ("float32", "float16", "bfloat16")
_MOST_SIZE = 1 << 31


@dataclass(frozen=True)
class ProductPlan:
    """The fastest launch of ``product`` on ``device``; samples are seconds of one launch, of torch's too."""

    product: LargeProduct
    device: str
    toolchain: str
    rank: int
    samples_s: tuple[float, ...]
    torch_s: tuple[float, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return (self.product, self.device)


def plans_for(table: Sequence[ProductPlan], product: LargeProduct, device: str) -> tuple[list[ProductPlan], str]:
    """The plans of ``table`` for ``product`` on ``device``, by whatever library, and why there is none ("")."""
    found = [plan for plan in table if plan.key == (product, device)]
    return found, "" if found else f"{_named(product)} on {device} was not timed (cacheir tune)"


def choose_rank(found: Sequence[ProductPlan], toolchain: str) -> tuple[int, str]:
    """The rank that a plan by ``toolchain`` says, of ``found`` for one product on one device, else torch's and why."""
    for plan in found:
        if plan.toolchain == toolchain:
            return plan.rank, ""
    where = f"{_named(found[0].product)} on {found[0].device}"
    return TORCH, f"{where} was timed with another library than {toolchain} (cacheir tune)"


def read_plans(path: Path) -> tuple[ProductPlan, ...]:
    """The plans in a table of tuned tiles, none where it has no such part. Raises UsageError for anything else."""
    try:
        return tuple(_plan(each) for each in json.loads(path.read_text(encoding="utf-8")).get(SECTION, []))
    except DAMAGE as error:
        raise UsageError(f"{path} is no table of product plans: {error}", hint="cacheir tune writes one") from error


def plans_section(before: Sequence[ProductPlan], plans: Sequence[ProductPlan]) -> dict[str, Any]:
    """What a table of tuned tiles holds besides: ``plans``, and those of ``before`` with other keys."""
    fresh = {plan.key for plan in plans}
    kept = sorted([*(plan for plan in before if plan.key not in fresh), *plans], key=lambda plan: str(plan.key))
    return {SECTION: [_row(plan) for plan in kept]}


@lru_cache(maxsize=1)
def installed_plans() -> tuple[ProductPlan, ...]:
    """The plans of the file that ``CACHEIR_CUDA_TUNED`` names, none without it."""
    named = os.environ.get(FILE_VARIABLE)
    return read_plans(Path(named)) if named else ()


def _row(plan: ProductPlan) -> dict[str, Any]:
    held = asdict(plan)
    return {**held.pop("product"), **held}


def _plan(held: Mapping[str, Any]) -> ProductPlan:
    sizes, flags = ("tokens", "count", "width"), ("dtype", "out", "adds")
    names = {*sizes, *flags, *(each.name for each in fields(ProductPlan))} - {"product"}
    if set(held) != names:
        raise ValueError(f"a plan has {sorted(held)}, not {sorted(names)}")
    if not all(type(held[name]) is int and 0 < held[name] < _MOST_SIZE for name in sizes):
        raise ValueError(f"{[held[name] for name in sizes]} are no sizes")
    if held["dtype"] not in _TYPES or held["out"] not in _TYPES or type(held["adds"]) is not bool:
        raise ValueError(f"{held['dtype']}, {held['out']} and {held['adds']} are no types of a product")
    if type(held["rank"]) is not int or not TORCH <= held["rank"] < MOST_PROPOSALS:
        raise ValueError(f"{held['rank']} is no rank of a proposal")
    product = LargeProduct(*(held[name] for name in (*sizes, *flags)))
    samples, by_torch = (read_samples(held[name]) for name in ("samples_s", "torch_s"))
    return ProductPlan(product, str(held["device"]), str(held["toolchain"]), held["rank"], samples, by_torch)


def _named(product: LargeProduct) -> str:
    how = "added to" if product.adds else "stored as"
    return f"{product.tokens} x {product.width} by {product.count} of {product.dtype}, {how} {product.out},"
