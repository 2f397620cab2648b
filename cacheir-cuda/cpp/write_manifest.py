"""Writes the manifest of compiled kernels: write_manifest.py NVCC FOLDER. Run by CMake after nvcc."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

CAPABILITIES = {"sm_90a": (9, 0), "sm_80": (8, 0)}


def main() -> None:
    """Name every cubin in FOLDER with its hash, its kernels, its sources' hash and the compiler."""
    nvcc, folder = sys.argv[1], Path(sys.argv[2])
    answer = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"V(\d+\.\d+\.\d+)", answer)
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.glob("*.cu*")):
        sources.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    entries = []
    for path in sorted(folder.glob("*.cubin")):
        image = path.read_bytes()
        entries.append(
            {
                "file": path.name,
                "capability": CAPABILITIES[path.name.split(".")[-2]],
                "sha256": hashlib.sha256(image).hexdigest(),
                "sources_sha256": sources.hexdigest(),
                "toolchain": f"nvcc {version.group(1) if version else 'unknown'}",
                "kernels": kernels_of(image),
            }
        )
    (folder / "manifest.json").write_text(json.dumps({"cubins": entries}, indent=1) + "\n", encoding="utf-8")


def kernels_of(image: bytes) -> list[str]:
    """The names behind ``.text.`` among the section names of an ELF file of 64 bits."""
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", image, offset + i * size) for i in range(count)]
    table = headers[names][4]
    found = []
    for header in headers:
        start = table + header[0]
        name = image[start : image.index(b"\0", start)].decode()
        if name.startswith(".text."):
            found.append(name[len(".text.") :])
    return sorted(found)


if __name__ == "__main__":
    main()
