"""FlashInfer and FlashAttention for a GPU machine without a network: python pack_adapters.py WORK PACK.tar.xz

Run it where pip reaches PyPI, by the Python and torch of the GPU machine (3.12, torch 2.11), with nvcc and ninja on
the path; no GPU is needed. WORK keeps what was downloaded and compiled, so that a run that was stopped goes on. That
is half an hour on two cores. PACK holds one folder for PYTHONPATH: FlashInfer's modules that the adapters call
(`data/aot`, where it looks before it compiles any), FlashAttention's forward kernels, and tvm-ffi. Sources are those of
the releases. What is compiled is a part of them: heads of 128 in bfloat16, no window and no soft cap, code for Hopper
alone. FlashAttention's other kernels are functions that raise. FlashInfer's other masks and its ragged keys are symbols
that nothing resolves, as its own modules leave tiles that it never takes: who calls them ends the process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLASHINFER, TVM_FFI, FLASH_ATTENTION = (
    "flashinfer-python==0.7.4",
    "apache-tvm-ffi==0.1.15.post2",
    "flash-attn==2.8.3.post2",
)
SITE = Path(sysconfig.get_paths()["purelib"])
HEADERS = SITE / "nvidia/cu13/include"  # of cuRAND and others that a compiler alone does not bring
HEAD_DIM, DTYPE = 128, "bf16"
NOT_CALLED = re.compile("ragged.*_kernel_|_mask_[023]")  # the adapters' prompts are paged and causal
HEAD_DIMS, DTYPES = (32, 64, 96, 128, 192, 256), {"fp16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}

# The modules that FlashInfer takes for the adapters' calls: plans and runs name them by these operands. For prompts it
# takes "fa2" where no row has more than 64 tokens, else "fa3".
SPECS = f"""
import torch
from flashinfer.jit.attention import modules
b, i, n = torch.bfloat16, torch.int32, {HEAD_DIM}
for spec in (
    modules.gen_single_decode_module(b, b, b, n, n, 0, False, False),
    modules.gen_batch_decode_module(b, b, b, i, n, n, 0, False, False),
    modules._gen_batch_prefill_primary_module("fa2", b, b, b, i, n, n, 0, False, False, False, False),
    modules.gen_batch_prefill_module("fa3", b, b, b, i, n, n, 0, False, False, False, False),
):
    spec.write_ninja()
    print(spec.ninja_path)
"""


def main() -> None:
    """Download, compile, link, pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time, 3 GB each")
    given = parser.parse_args()
    work, site = given.work.resolve(), given.work.resolve() / "site"
    downloads = downloaded(work)
    flash = work / downloads[2].name.removesuffix(".tar.gz")
    if not flash.exists():  # what is unpacked anew is newer than what was compiled of it
        for wheel in downloads[:2]:
            zipfile.ZipFile(wheel).extractall(site)
        with tarfile.open(downloads[2]) as source:
            source.extractall(work, filter="data")
    build_flashinfer(work, site, given.jobs)
    build_flash_attention(work, site, flash, given.jobs)
    pack(site, given.pack)


def downloaded(work: Path) -> list[Path]:
    """The two wheels and the source distribution."""
    folder = work / "downloads"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    found: list[Path] = []
    for name, options in (
        (FLASHINFER, ("--only-binary=:all:",)),
        (TVM_FFI, ("--only-binary=:all:",)),
        (FLASH_ATTENTION, ("--no-binary=:all:", "--no-build-isolation")),  # pip runs its setup.py, which imports torch
    ):
        beginning = name.replace("-", "_").replace("==", "-")
        if not list(folder.glob(beginning + "*")):
            subprocess.run([*pip, *options, name], check=True)
        found += folder.glob(beginning + "*")
    return found


def build_flashinfer(work: Path, site: Path, jobs: int) -> None:
    """Each module of SPECS into ``site``, by FlashInfer's own lines for ninja; it is linked here."""
    env = os.environ | {
        "PYTHONPATH": str(site), "FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(work),
        "NVCC_APPEND_FLAGS": f"-isystem {HEADERS}",
    }  # fmt: skip
    made = subprocess.run([sys.executable, "-c", SPECS], env=env, check=True, text=True, stdout=subprocess.PIPE).stdout
    for ninja in map(Path, made.split()):
        lines = [line.split() for line in ninja.read_text().splitlines() if line.startswith("build ")]
        objects = [line[1].removesuffix(":") for line in lines if "compile" in line[2]]
        objects = [each for each in objects if not NOT_CALLED.search(Path(each).name)]
        subprocess.run(["ninja", "-j", str(jobs), "-f", ninja, *objects], cwd=ninja.parent.parent, env=env, check=True)
        name = ninja.parent.name
        library = site / "flashinfer/data/aot" / name / f"{name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        link(work, library, objects, ["cudart", "cuda"])


def build_flash_attention(work: Path, site: Path, flash: Path, jobs: int) -> None:
    """``flash_attn`` and its extension, with forward kernels of one head size and type, into ``site``."""
    source, objects = flash / "csrc/flash_attn", work / "flash_attention_objects"
    objects.mkdir(exist_ok=True)
    rest = objects / "not_built.cpp"
    rest.write_text(not_built())
    kernels = [
        source / "src" / f"flash_{kind}_hdim{HEAD_DIM}_{DTYPE}{causal}_sm80.cu"
        for kind, causal in itertools.product(("fwd", "fwd_split"), ("_causal", ""))
    ]
    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(lambda each: compiled(each, objects, source), [*kernels, source / "flash_api.cpp", rest]))
    extension = site / f"flash_attn_2_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    link(work, extension, made, ["torch_python", "torch_cuda", "torch_cpu", "torch", "c10_cuda", "c10", "cudart"])
    for each in (flash / "flash_attn").rglob("*.py"):
        copy = site / each.relative_to(flash)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each, copy)
    metadata = site / f"{flash.name}.dist-info/METADATA"
    metadata.parent.mkdir(exist_ok=True)
    shutil.copyfile(flash / "PKG-INFO", metadata)


def compiled(source: Path, objects: Path, own: Path) -> str:
    """The object of ``source``, by the options of FlashAttention's setup.py; one that is there is kept."""
    made = objects / f"{source.name}.o"
    if made.exists():
        return str(made)
    torch = SITE / "torch/include"
    includes = [own, own / "src", own.parent / "cutlass/include", torch, torch / "torch/csrc/api/include"]
    system = [HEADERS, Path(sysconfig.get_paths()["include"])]
    options = [*(f"-I{each}" for each in includes), *itertools.chain(*(("-isystem", str(each)) for each in system))]
    options += ["-O3", "-std=c++17", "-DTORCH_EXTENSION_NAME=flash_attn_2_cuda", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    undefined = ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    options += [f"-U__CUDA_NO_{each}__" for each in undefined]
    options += ["--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math", "-Xcompiler", "-fPIC"]
    command = ["nvcc", "-gencode", "arch=compute_90,code=sm_90", *options]  # it knows its headers, of C++ too
    part = made.with_suffix(".part")
    subprocess.run([*command, "-c", str(source), "-o", str(part)], check=True)
    part.rename(made)
    return str(made)


def not_built() -> str:
    """C++ of the functions that flash_api.cpp wants and no kernel is compiled for: each raises."""
    lines = [
        "#include <c10/util/Exception.h>", "#include <cutlass/numeric_types.h>", '#include "namespace_config.h"',
        '#include "flash.h"', "namespace FLASH_NAMESPACE {",
    ]  # fmt: skip
    functions = {"run_mha_fwd_": "fwd", "run_mha_fwd_splitkv_dispatch": "fwd", "run_mha_bwd_": "bwd"}
    for (name, way), (short, dtype), dim, causal in itertools.product(
        functions.items(), DTYPES.items(), HEAD_DIMS, ("true", "false")
    ):
        if way == "fwd" and (short, dim) == (DTYPE, HEAD_DIM):
            continue
        lines.append(
            f"template <> void {name}<{dtype}, {dim}, {causal}>(Flash_{way}_params&, cudaStream_t) {{\n"
            f'  TORCH_CHECK(false, "{way} of {short} heads of {dim} was not built");\n}}'
        )
    return "\n".join([*lines, "}"]) + "\n"


def link(work: Path, library: Path, objects: list[str], needed: list[str]) -> None:
    """A stripped library; the driver's is stood in for, since the machine that compiles may have none."""
    stub = work / "stub"
    stub.mkdir(exist_ok=True)
    driver = ["c++", "-shared", "-x", "c", os.devnull, "-o", str(stub / "libcuda.so"), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(driver, check=True)
    runtime = stub / "libcudart.so"
    runtime.unlink(missing_ok=True)
    runtime.symlink_to(next((SITE / "nvidia/cu13/lib").glob("libcudart.so*")))
    command = ["c++", "-shared", "-s", *objects, f"-L{stub}", f"-L{SITE / 'torch/lib'}", "-Wl,--no-as-needed"]
    subprocess.run([*command, *(f"-l{name}" for name in needed), "-o", str(library)], check=True)


def pack(site: Path, archive: Path) -> None:
    """Python's files, what they read and the libraries.

    FlashInfer writes a module's sources from its templates before it looks for the library that is there.
    """
    kept = {".py", ".so", ".json", ".yaml"}

    def chosen(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(entry.name)
        if path.parts[:3] == ("flashinfer", "data", "csrc"):
            return entry if len(path.parts) == 3 or (len(path.parts) == 4 and entry.isfile()) else None
        if path.parts[:2] == ("flashinfer", "data") and path.parts[2:3] not in ((), ("aot",)):
            return None
        return entry if entry.isdir() or path.suffix in kept or path.name == "METADATA" else None

    with tarfile.open(archive, "w:xz", preset=3) as made:
        for each in sorted(site.iterdir()):
            made.add(each, each.name, filter=chosen)
    print(f"{archive}: {archive.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
