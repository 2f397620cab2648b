"""The peers that CacheIR compares itself with: whether each is installed, and how it is started.

Each runs by a script of the folder ``children`` in its own process, with OpenMP's threads tied to cores.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cacheir.bench.against.contestants import child_command
from cacheir.errors import BackendError
from cacheir.plugins.surface_records import CheckResult

Settings = list[dict[str, Any]]

_HUGE_PAGES = "GLIBC_TUNABLES"
# It sends reports of its use, and asks a hub, unless it is told not to.
_VLLM = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}


def why_no_llama_cpp() -> str | None:
    """Why llama.cpp cannot run here, None where it can."""
    return _why_missing("llama_cpp", "llama-cpp-python")


def why_no_openvino() -> str | None:
    """Why OpenVINO GenAI cannot run here, None where it can."""
    return _why_missing("openvino_genai", "openvino-genai")


def why_no_onnxruntime_genai() -> str | None:
    """Why ONNX Runtime GenAI cannot run here, None where it can."""
    return _why_missing("onnxruntime_genai", "onnxruntime-genai")


def llama_cpp(options: Mapping[str, Any]) -> Settings:
    """Flash attention off and on, each with its weights mapped from the file and in huge pages of memory."""
    return [
        _setting(
            ", ".join(part for part in ("flash attention" if flash else "", "huge pages" if huge else "") if part)
            or "plain",
            "timed_llama_cpp",
            {**options, "flash_attention": flash, "huge_pages": huge},
            {_HUGE_PAGES: "glibc.malloc.hugetlb=1"} if huge else {},
        )
        for huge in ((False, True) if sys.platform == "linux" else (False,))
        for flash in (False, True)
    ]


def openvino(options: Mapping[str, Any]) -> Settings:
    """Its defaults: dynamic quantisation of activations, threads tied to cores."""
    return [_setting("", "timed_openvino", options, {})]


def onnxruntime_genai(options: Mapping[str, Any]) -> Settings:
    """Its defaults, on a folder of its own format; the setting says which precision the weights in it have.

    BackendError where ``options["model"]`` is no such folder.
    """
    folder = Path(options["model"])
    if not (folder / "genai_config.json").is_file():
        raise BackendError(
            f"onnxruntime-genai opens folders that its model builder made, and {folder.name} is none",
            hint="--peer-model onnxruntime-genai=FOLDER; docs/benchmarks.md says how one is made",
        )
    weights = _weights_of(folder)
    return [_setting(f"{weights} weights", "timed_onnxruntime_genai", {**options, "weights": weights}, {})]


def _weights_of(folder: Path) -> str:
    """What ``made_from.json`` says, which benchmarks/onnxruntime_genai_make.py writes; else the folder's name."""
    noted = folder / "made_from.json"
    if not noted.is_file():
        return folder.name
    try:
        said = json.loads(noted.read_text(encoding="utf-8"))
        return str(said["precision"])
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{noted.name} in {folder.name} does not say a precision: {error!r}") from error


def why_no_vllm() -> str | None:
    """Why vLLM cannot run here, None where it can, as far as can be told without importing it."""
    return _why_missing("vllm", "vllm")


def vllm(options: Mapping[str, Any]) -> Settings:
    """Its engine in a process of its own, as it comes, and in the one that asks. Whole answers alone."""
    return [
        _setting("own process", "timed_vllm", options, _VLLM),
        _setting("in process", "timed_vllm", options, {**_VLLM, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
    ]


def installed_peers() -> CheckResult:
    """A line of ``cacheir plugins doctor``: which peers can be compared with here. None is needed."""
    reasons = {
        "llama.cpp": why_no_llama_cpp(),
        "openvino": why_no_openvino(),
        "onnxruntime-genai": why_no_onnxruntime_genai(),
        "vllm": why_no_vllm(),
    }
    said = [f"{name}: {reason or 'installed'}" for name, reason in reasons.items()]
    return CheckResult(ok=True, idle=all(reasons.values()), detail="; ".join(said))


def _why_missing(module: str, distribution: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{distribution} is not installed (pip install {distribution}, or --peer-python for another environment)"


def _setting(name: str, module: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    threads = str(options["threads"])
    tied = {"OMP_NUM_THREADS": threads, "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    inherited = {_HUGE_PAGES: os.environ[_HUGE_PAGES]} if _HUGE_PAGES in os.environ else {}
    return {
        "setting": name,
        "command": child_command(module, options, options["python"]),
        "environment": {**inherited, **tied, **environment},
    }
