"""What the CUDA executor takes of a program's steps."""

from __future__ import annotations

from cacheir.runtime.executor import Capabilities
from cacheir.runtime.row_outputs import WANTED
from cacheir.schedule.program import Program
from cacheir_cuda.pool import DTYPES


def capabilities_of(program: Program) -> Capabilities:
    """Within these the engine plans."""
    return Capabilities(
        determinism="tolerance",
        heads=WANTED,
        page_tokens=(),
        kv_formats=tuple(DTYPES),
        row_classes=tuple(program.schedules["decode"].row_classes),
        max_rows=program.max_rows,
        max_tokens=program.max_tokens,
        run_ahead=True,
        masks=True,
    )
