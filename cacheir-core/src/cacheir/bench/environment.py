"""What a measurement was made on: processor, memory, versions, settings. No host name, no path."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cacheir import __version__, settings
from cacheir.runtime.usable_cores import affinity_cores, quota_cores, usable_cores

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")

# The instruction sets that kernels are written for, as the kernel's list of flags spells them.
INSTRUCTION_SETS = (
    "sse4_2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512_bf16 avx512_fp16 avx512_vnni avx_vnni amx_tile amx_int8 "
    "amx_bf16 asimd asimddp i8mm bf16 sve sve2"
).split()
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def environment() -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "cpu": cpu(),
        "memory": memory(),
        "system": {"name": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "python": {"version": platform.python_version(), "implementation": sys.implementation.name},
        "numpy": numpy_build(),
        "cacheir": {"version": __version__, "commit": commit()},
        "packages": packages(),
        "settings": settings_in_force(),
        "thread_variables": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
    }


def cpu(cpuinfo: Path = _CPUINFO) -> dict[str, Any]:
    """The processor's name, its instruction sets as far as kernels have a use for them, and the cores there are."""
    fields = _colon_fields(cpuinfo)
    flags = set(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())
    quota = quota_cores()
    return {
        "model": fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine(),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "cores": os.cpu_count() or 1,
        "affinity_cores": affinity_cores(),
        "quota_cores": None if quota == float("inf") else quota,
        "usable_cores": usable_cores(),
    }


def memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> dict[str, Any]:
    """Bytes of memory, those still to be had, and the control group's limit (None where there is none)."""
    fields = _colon_fields(meminfo)
    limits = [_whole_number(cgroups / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    total = _kilobytes(fields.get("MemTotal", ""))
    # Version 1 spells "no limit" as a number near 2**63.
    bounded = [limit for limit in limits if limit is not None and (total is None or limit < total)]
    return {
        "total_bytes": total,
        "available_bytes": _kilobytes(fields.get("MemAvailable", "")),
        "limit_bytes": min(bounded, default=None),
    }


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The most memory that this process has had resident (VmHWM), None where the system does not say."""
    return _kilobytes(_colon_fields(status).get("VmHWM", ""))


def resident_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The memory that this process has resident now (VmRSS), None where the system does not say."""
    return _kilobytes(_colon_fields(status).get("VmRSS", ""))


def numpy_build() -> dict[str, Any]:
    """NumPy's version and the BLAS that it was built with."""
    import numpy as np

    build: dict[str, Any] = dict(np.show_config(mode="dicts"))
    blas = build.get("Build Dependencies", {}).get("blas", {})
    return {"version": np.__version__, "blas": blas.get("name", ""), "blas_version": blas.get("version", "")}


def packages() -> dict[str, str]:
    """The versions of the distributions of this project that are installed."""
    found = {}
    for name in (
        "cacheir-core",
        "cacheir-cpu",
        "cacheir-native",
        "cacheir-cuda",
        "cacheir-importers",
        "cacheir-server",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def settings_in_force() -> dict[str, str]:
    """The ``CACHEIR_*`` variables that are set; of a path only that it is set."""
    kinds = {setting.name: setting.kind for setting in settings.SETTINGS}
    return {name: "set" if kinds[name] == "path" else os.environ[name] for name in sorted(kinds) if name in os.environ}


def commit(inside: Path = Path(__file__)) -> str:
    """The commit of the checkout that this file lies in, "" outside of one; files that differ from it are not seen."""
    for folder in inside.resolve().parents:
        head = _text(folder / ".git" / "HEAD").strip()
        if not head:
            continue
        name = head.removeprefix("ref: ")
        found = head if name == head else _text(folder / ".git" / name).strip() or _packed(folder, name)
        return found if _COMMIT.fullmatch(found) else ""
    return ""


def _packed(folder: Path, name: str) -> str:
    for line in _text(folder / ".git" / "packed-refs").split("\n"):
        if line.endswith(f" {name}"):
            return line.split(" ")[0]
    return ""


def _colon_fields(path: Path) -> dict[str, str]:
    """The first value of each ``name : value`` line."""
    fields: dict[str, str] = {}
    for line in _text(path).split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _kilobytes(text: str) -> int | None:
    number, _, unit = text.partition(" ")
    return int(number) * 1024 if number.isdigit() and unit == "kB" else None


def _whole_number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
