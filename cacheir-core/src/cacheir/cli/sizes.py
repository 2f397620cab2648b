"""Sizes of memory as people write them: ``2GiB``, ``1.5 GB``, ``800MB``, or bytes."""

from __future__ import annotations

import re

from cacheir.errors import UsageError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str, option: str) -> int:
    """Bytes. UsageError, which names ``option``, for anything else."""
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise UsageError(f"{option} must be a size of memory, not {text!r}", hint="such as 2GiB, 1.5GB or 800MB")
    return int(float(match[1]) * factor)
