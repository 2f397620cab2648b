"""``cacheir benchmark --suite cuda-kernels``: GB/s and TFLOP/s of each kernel by size, and its fixed time and slope."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cacheir.errors import BackendUnavailable, UsageError
from cacheir.ir.types import KVType
from cacheir.plugins import KernelSpec
from cacheir.plugins.ref import resolve
from cacheir_cuda import plugin
from cacheir_cuda.adapters.libraries import FLASH_ATTENTION, FLASHINFER, VLLM_FLASH_ATTENTION
from cacheir_cuda.compiled import refusals as compiled_refusals
from cacheir_cuda.kernels.triton_refusals import why_not_here
from cacheir_cuda.measure.timing import line, seconds_of
from cacheir_cuda.options import read_options
from cacheir_cuda.pool import Pool
from cacheir_cuda.probe import why_unavailable

FORMAT = 1
_COPIES_BYTES = 160 << 20  # more than three times an H200's L2: rotated operands come from memory
_MOST_ROWS = 2048
_SETTINGS = ("kernel", "scale", "seconds")
_ADAPTER = "cuda.adapter."
_LATER = (_ADAPTER, "cuda.torch.")
_LIBRARIES = {
    "flash_attention_vllm": VLLM_FLASH_ATTENTION, "flash_attention": FLASH_ATTENTION, "flashinfer": FLASHINFER,
}  # fmt: skip
_HEADS, _KV_HEADS, _DIM = 16, 8, 128
_ATTENTION = {"layer": 0, "scale": 0.088, "window": 0}


@dataclass(frozen=True)
class Case:
    """One launch of a kernel: what it is called with, and what it must move and compute."""

    shape: str
    nbytes: int
    operations: int
    operands: tuple[tuple[Any, ...], ...]  # equal but for where they lie: launches go round them
    named: Mapping[str, Any]

    def call(self, entry: Callable[..., Any], number: int) -> None:
        """Launch number ``number``."""
        entry(*self.operands[number % len(self.operands)], **self.named)


def run(options: Mapping[str, Any]) -> dict[str, Any]:
    """The report. ``--set kernel=NAME[,NAME...]`` times those alone, ``--set scale=N`` makes all sizes N times smaller.

    ``--set seconds=N`` begins no kernel after N seconds: those left are skipped with that reason; adapters and
    torch's come last. A kernel that fails is named in ``failed`` with its error.
    Raises BackendUnavailable, with the reason, where there is no GPU to time; UsageError for another setting.
    """
    own = read_options({})
    # What they take on the processor says nothing: neither a rate of a GPU nor the line through times of launches.
    reason = why_unavailable() or ("the device is the processor" if own.device == "cpu" else None)
    if reason is not None:
        raise BackendUnavailable(
            f"the CUDA kernels cannot be timed: {reason}", hint="time them on the machine with the GPU"
        )
    return timed(options, torch.device(own.device), own.cuda_dtype)


def timed(options: Mapping[str, Any], device: torch.device, dtype_name: str) -> dict[str, Any]:
    """``run`` on ``device``, with matrices of ``dtype_name`` (``bfloat16``, ``float16``, ``float32``)."""
    given = dict(options.get("set") or {})
    unknown = sorted(set(given) - set(_SETTINGS))
    if unknown:
        raise UsageError(f"the suite cuda-kernels has no setting {unknown[0]!r}", hint=f"it has {', '.join(_SETTINGS)}")
    scale, seconds = _whole("scale", given.get("scale", "1"), 64), _whole("seconds", given.get("seconds", "3600"), 3600)
    dtype = getattr(torch, dtype_name)
    say = options.get("progress") or (lambda text: None)
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    named = {spec.name: spec for spec in plugin.cacheir_register_kernels() if spec.op in _CASES}
    wanted = [name for name in str(given.get("kernel", "")).split(",") if name] or sorted(named)
    for name in wanted:
        if name not in named:
            raise UsageError(f"the suite has no kernel {name!r}", hint=f"it has {', '.join(sorted(named))}")
    until = time.monotonic() + seconds
    for name, spec in sorted(named.items(), key=lambda item: (item[0].startswith(_LATER), item[0])):
        if name not in wanted:
            continue
        why = _why_not(spec) or ("the suite's seconds were over" if time.monotonic() > until else None)
        if why:
            skipped[name] = why
            continue
        entry = resolve(spec.entry)
        try:
            for case in _CASES[spec.op](device, dtype, scale, spec.max_rows or _MOST_ROWS):
                samples = seconds_of(partial(case.call, entry), device)
                rows.append(_row(name, case, samples))
                say(f"{name} {case.shape}: {rows[-1]['gb_per_s']:.0f} GB/s, {rows[-1]['tflop_per_s']:.2f} TFLOP/s")
        except Exception as error:  # noqa: BLE001  a kernel that fails is a line of the report, and the others are timed
            failed[name] = f"{type(error).__name__}: {error}"[:500]
            say(f"{name} failed: {failed[name]}")
    return {
        "format": FORMAT,
        "suite": "cuda-kernels",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor",
        "dtype": dtype_name,
        "torch": torch.__version__,
        "rows": rows,
        "fits": {name: fit for name in named if (fit := _fit([row for row in rows if row["kernel"] == name]))},
        "skipped": skipped,
        "failed": failed,
    }


def _why_not(spec: KernelSpec) -> str | None:
    if spec.target == "cuda.torch":
        return None
    if spec.name.startswith(_ADAPTER):
        place = spec.name.removeprefix(_ADAPTER)
        library = next(library for prefix, library in _LIBRARIES.items() if place.startswith(prefix))
        return library.why_not_here()
    return compiled_refusals.why_not_here() if spec.target == "cuda.cpp" else why_not_here()


def _row(name: str, case: Case, samples: list[float]) -> dict[str, Any]:
    seconds = statistics.median(samples)
    return {
        "kernel": name,
        "shape": case.shape,
        "bytes": case.nbytes,
        "operations": case.operations,
        "samples_s": samples,
        "gb_per_s": case.nbytes / seconds / 1e9,
        "tflop_per_s": case.operations / seconds / 1e12,
    }


def _fit(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """``t_fixed`` and the bytes a second of the slope, where a kernel was timed at two sizes or more."""
    points = [(float(row["bytes"]), statistics.median(row["samples_s"])) for row in rows]
    if len({point[0] for point in points}) < 2:
        return None
    fixed, slope = line(points)
    return {"t_fixed_us": fixed * 1e6, "slope_gb_per_s": 1e-9 / slope if slope > 0 else 0.0}


def _whole(name: str, text: str, most: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise UsageError(f"--set {name}={text} is no number from 1 to {most}")
    return int(text)


def _copies(nbytes: int, device: torch.device) -> int:
    return max(1, min(64, _COPIES_BYTES // max(1, nbytes))) if device.type == "cuda" else 1


def _linear(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for rows in sorted({min(rows, most) for rows in (1, 8, 64, 2048)}):
        for full in (1024, 2048, 4096):
            size = full // scale
            yield _product(device, dtype, rows, size, size, size)


def _gated(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for rows in sorted({min(rows, most) for rows in (1, 64, 2048)}):
        for full in (1024, 2048):
            yield _product(device, dtype, rows, 6 * full // scale, full // scale, 3 * full // scale)


def _head(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for rows in sorted({min(rows, most) for rows in (1, 8, 64)}):
        made = _product(device, dtype, rows, 151936 // scale, 1024 // scale, 0)
        yield replace(made, named={"out": torch.empty(rows, dtype=torch.int32, device=device)})


def _product(device: torch.device, dtype: torch.dtype, rows: int, count: int, width: int, outputs: int) -> Case:
    """``rows`` rows times a matrix of ``count`` x ``width``, of which ``outputs`` columns are left."""
    nbytes = count * width * dtype.itemsize
    x, out = torch.randn(rows, width, device=device), torch.empty(rows, outputs, device=device)
    weights = [torch.randn(count, width, device=device).to(dtype) for _ in range(_copies(nbytes, device))]
    moved = nbytes + 4 * rows * (width + outputs)
    operands = tuple((x, weight) for weight in weights)
    return Case(f"{rows} rows, {count} x {width}", moved, 2 * rows * count * width, operands, {"out": out})


def _qkv(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    width, heads, dim = 2048 // scale, _HEADS + 2 * _KV_HEADS, _DIM
    for rows in sorted({min(rows, most) for rows in (1, 64, 2048)}):
        plain = _product(device, dtype, rows, heads * dim, width, heads * dim)
        norm, angles = torch.ones(width, device=device), torch.randn(rows, dim // 2, device=device)
        outs = tuple(torch.empty(rows, n, dim, device=device) for n in (_HEADS, _KV_HEADS, _KV_HEADS))
        operands = tuple((x, norm, weight, angles.cos(), angles.sin()) for x, weight in plain.operands)
        named = {"eps": 1e-6, "layout": "half", "heads": _HEADS, "kv_heads": _KV_HEADS, "out": outs}
        yield replace(plain, operands=operands, named=named)


def _gate(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for rows in (1, 64, 2048):
        gate, up = (torch.randn(rows, 6144 // scale, device=device) for _ in range(2))
        named = {"out": torch.empty_like(gate)}
        yield Case(f"{rows} rows of {gate.shape[1]}", 12 * gate.numel(), 5 * gate.numel(), ((gate, up),), named)


def _norm(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    weight = torch.ones(4096 // scale, device=device)
    for rows in (1, 64, 1024):
        x = torch.randn(rows, len(weight), device=device)
        named = {"eps": 1e-6, "out": torch.empty_like(x)}
        yield Case(f"{rows} rows of {len(weight)}", 8 * x.numel(), 4 * x.numel(), ((x, weight),), named)


def _decode(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for rows, full in ((1, 512), (1, 4096), (32, 512), (128, 1024)):
        if rows > most:
            continue
        keys = full // scale
        pool, table = _pages(device, dtype, rows, keys)
        pool.begin_step(list(range(rows + 1)), [keys] * rows)  # adapters want the lengths on the host
        q = torch.randn(rows, _HEADS, _DIM, device=device)
        last = torch.full((rows,), keys - 1, dtype=torch.int32, device=device)
        nbytes = 2 * rows * keys * _KV_HEADS * _DIM * pool.storage.itemsize
        named = {**_ATTENTION, "out": torch.empty_like(q)}
        operands = ((q, pool, table, last, last + 1),)
        yield Case(f"{rows} rows, {keys} keys", nbytes, 4 * rows * keys * _HEADS * _DIM, operands, named)


def _prefill(device: torch.device, dtype: torch.dtype, scale: int, most: int) -> Iterator[Case]:
    for full in (128, 512, 2048):
        tokens = full // scale
        pool, table = _pages(device, dtype, 1, tokens)
        pool.begin_step([0, tokens], [tokens])
        q = torch.randn(tokens, _HEADS, _DIM, device=device)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        at = torch.arange(tokens, dtype=torch.int32, device=device)
        nbytes = 2 * tokens * _KV_HEADS * _DIM * pool.storage.itemsize + 8 * q.numel()
        named = {**_ATTENTION, "out": torch.empty_like(q)}
        operands = ((q, pool, table, starts, at, starts[1:]),)
        yield Case(f"{tokens} tokens", nbytes, 2 * tokens * tokens * _HEADS * _DIM, operands, named)


def _pages(device: torch.device, dtype: torch.dtype, rows: int, keys: int) -> tuple[Pool, torch.Tensor]:
    """Pages of random keys in 16 tokens each, every row's own."""
    each = -(-keys // 16)
    kind = KVType(layers=1, heads=_KV_HEADS, head_dim=_DIM, dtype="f32" if dtype == torch.float32 else "bf16")
    pool = Pool(kind, [0], rows * each, 16, device)
    pool.storage.normal_()
    return pool, torch.arange(rows * each, dtype=torch.int32, device=device).view(rows, each)


_CASES: Mapping[str, Callable[[torch.device, torch.dtype, int, int], Iterator[Case]]] = {
    "linear": _linear,
    "fused_swiglu": _gated,
    "fused_rmsnorm_qkv_rope": _qkv,
    "head_argmax": _head,
    "swiglu": _gate,
    "rms_norm": _norm,
    "paged_attention_decode": _decode,
    "paged_attention_prefill": _prefill,
}
