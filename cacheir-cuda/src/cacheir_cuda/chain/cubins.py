"""The compiled CUDA C++ kernels: where they lie, and why they may not be loaded.

``cmake -S cacheir-cuda/cpp -B BUILD && cmake --build BUILD`` makes them with nvcc and writes ``manifest.json`` beside
them; wheels carry both. Without them every shape runs on the Triton and torch kernels.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cacheir import settings
from cacheir.errors import ArtifactError, BackendUnavailable
from cacheir.plugins import CheckResult
from cacheir.weights.atomic_file import write_file

CHAIN = "decode_chain"  # the cubin of the decode chain for one row; each is named for the source that it is made of
FOLDER = Path(__file__).resolve().parent.parent / "cubins"
MANIFEST = "manifest.json"
LARGEST = 64 << 20  # bytes
BUILD = "cmake -S cacheir-cuda/cpp -B build/cuda && cmake --build build/cuda"
HINT = "build them with CMake and nvcc 13 (cacheir-cuda/README.md), or run on the Triton and torch kernels as now"

CACHE_VARIABLE = "CACHEIR_CUDA_CUBINS"


def other_folders() -> tuple[Path, ...]:
    """The folder that ``CACHEIR_CUDA_CUBINS`` names, and that of what came with artifacts, in the cache."""
    named = os.environ.get(CACHE_VARIABLE)
    return (*((Path(named),) if named else ()), settings.cache_dir() / "cubins")


def carried(folder: Path = FOLDER) -> dict[str, bytes]:
    """The cubins of this installation by name, for an artifact to take along; none where none are built."""
    try:
        cubins = read_manifest(folder)
    except BackendUnavailable:
        return {}
    images = {cubin.name: _read(folder / cubin.name) for cubin in cubins}
    return {name: image for name, image in images.items() if image is not None}


def keep_carried(folder: Path | None, installed: Path = FOLDER) -> tuple[str, ...]:
    """Keep in the cache what an artifact brought in ``folder`` and the installation lacks; why not, a sentence each.

    Nothing that is brought is believed: its hash must stand in the manifest of the installed package.
    """
    if folder is None:
        return ()
    try:
        known = {cubin.name: cubin for cubin in read_manifest(installed)}
    except BackendUnavailable as reason:
        return (f"what the artifact brought is not loaded: {reason}",)
    refused = []
    for path in sorted(folder.glob("*.cubin")):
        cubin, image = known.get(path.name), _read(path)
        if cubin is None or image is None or hashlib.sha256(image).hexdigest() != cubin.sha256:
            refused.append(f"the artifact's {path.name} is none that the installed package's manifest names")
        elif _read(installed / path.name) is None:
            try:
                write_file(settings.cache_dir() / "cubins" / path.name, image)
            except ArtifactError as error:
                refused.append(f"the artifact's {path.name} is not kept: {error}")
    return tuple(refused)


@dataclass(frozen=True)
class Cubin:
    """One file of the manifest: for which compute capability, its hash, and the kernels that it has."""

    name: str
    capability: tuple[int, int]
    sha256: str
    toolchain: str
    kernels: frozenset[str]

    @property
    def source(self) -> str:
        """The name of the source that it is made of, without its ending."""
        return self.name.partition(".")[0]


@lru_cache(maxsize=8)
def read_manifest(folder: Path = FOLDER) -> tuple[Cubin, ...]:
    """The manifest's files. Raises BackendUnavailable where there is none or it says something else."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise BackendUnavailable("the CUDA C++ kernels are not built in this installation", hint=HINT) from None
    try:
        return tuple(_cubin(entry) for entry in json.loads(text)["cubins"])
    except (ValueError, KeyError, TypeError) as error:
        raise BackendUnavailable(f"{path} is no manifest of compiled kernels ({error!r})", hint=HINT) from error


def _cubin(entry: dict[str, Any]) -> Cubin:
    name, (major, minor) = str(entry["file"]), entry["capability"]
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no file name")
    return Cubin(
        name, (int(major), int(minor)), str(entry["sha256"]), str(entry["toolchain"]), frozenset(entry["kernels"])
    )


def load_cubin(
    capability: tuple[int, int], folder: Path = FOLDER, others: Sequence[Path] = (), source: str = CHAIN
) -> bytes:
    """The cubin of ``source``.cu for a GPU of ``capability``.

    Raises BackendUnavailable where there is none, or its hash is another. ``others`` are folders where the file may
    lie besides (a cache, what came with an artifact). Nothing that is found there is believed: its hash must stand in
    the manifest of the installed package, in ``folder``.
    """
    cubins = {cubin.capability: cubin for cubin in read_manifest(folder) if cubin.source == source}
    if capability not in cubins:
        own = ".".join(map(str, capability))
        made = ", ".join(f"{major}.{minor}" for major, minor in sorted(cubins))
        raise BackendUnavailable(
            f"the CUDA C++ kernels of {source} are compiled for compute capability {made}, and this GPU has {own}"
            if cubins
            else f"the CUDA C++ kernels of {source} are not built in this installation",
            hint=HINT,
        )
    cubin = cubins[capability]
    for other in others:
        image = _read(other / cubin.name)
        if image is not None and hashlib.sha256(image).hexdigest() == cubin.sha256:
            return image
    try:
        image = (folder / cubin.name).read_bytes()
    except OSError as error:
        raise BackendUnavailable(f"{folder / cubin.name} cannot be read ({error})", hint=HINT) from error
    if hashlib.sha256(image).hexdigest() != cubin.sha256:
        raise BackendUnavailable(f"{folder / cubin.name} is not the file that its manifest names", hint=HINT)
    return image


def check_cubins(folder: Path = FOLDER) -> CheckResult:
    """Report the cubins for ``cacheir plugins doctor``. None is needed; one that is not the manifest's is a fault."""
    if not (folder / MANIFEST).is_file():
        return CheckResult(
            ok=True,
            idle=True,
            detail="the CUDA C++ kernels are not built in this installation, so Triton's and torch's run",
            hint=f"{BUILD}  (CMake 3.22 and nvcc 13; cacheir-cuda/README.md)",
        )
    try:
        cubins = read_manifest(folder)
        for cubin in cubins:
            load_cubin(cubin.capability, folder, other_folders(), cubin.source)
    except BackendUnavailable as reason:
        return CheckResult(ok=False, detail=str(reason), hint=f"build them again: {BUILD}")
    made = (f"{cubin.source} for {cubin.capability[0]}.{cubin.capability[1]}" for cubin in cubins)
    return CheckResult(ok=True, detail=f"CUDA C++ kernels by compute capability: {', '.join(made)}")


def _read(path: Path) -> bytes | None:
    """The file's bytes, None where there is no plain file of a cubin's size that can be read."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= LARGEST else None
    except OSError:
        return None
