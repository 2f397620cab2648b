"""Whether the native backend can run here: it needs its compiled extension and a CPU that one of its builds fits."""

from __future__ import annotations

import struct
import sys
from importlib import import_module
from importlib.util import find_spec

EXTENSION = "cacheir_native._cacheir_native"


def why_unavailable() -> str | None:
    """None where the backend can run, else the reason in words. Loads the extension, which loads nothing else."""
    if EXTENSION not in sys.modules:
        spec = find_spec(EXTENSION)
        if spec is None:
            return f"the compiled extension {EXTENSION} is not built: cacheir-native came without compiled code"
        if spec.origin and is_cut_short(spec.origin):
            return f"{EXTENSION} cannot be used: its file {spec.origin} is too short, as an interrupted copy leaves it"
    try:
        import_module(EXTENSION).isa()
    except (ImportError, ValueError, RuntimeError) as error:
        return f"{EXTENSION} cannot be used: {error}"
    return None


def instruction_set() -> str:
    """The instruction set whose kernels run here, "" where none can."""
    if why_unavailable() is not None:
        return ""
    name: str = import_module(EXTENSION).isa()
    return name


def kv_dtype() -> str:
    """How keys and values are kept by default: as attention rounds them for its products, which takes nothing away."""
    return "bf16" if instruction_set() == "avx512_vnni" else "f32"


def is_cut_short(path: str) -> bool:
    """Whether an ELF file ends before its segments do: the loader maps such a file, and the process dies in it.

    Source of the layout: the ELF-64 specification, file header and program headers; little-endian as on x86-64.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return len(header) < 64
        (table,) = struct.unpack_from("<Q", header, 32)
        entry_bytes, count = struct.unpack_from("<HH", header, 54)
        size = file.seek(0, 2)
        if entry_bytes < 56 or table + entry_bytes * count > size:
            return True
        file.seek(table)
        entries = file.read(entry_bytes * count)
    for start in range(0, len(entries), entry_bytes):
        offset, _, _, in_file = struct.unpack_from("<QQQQ", entries, start + 8)
        if offset + in_file > size:
            return True
    return False
