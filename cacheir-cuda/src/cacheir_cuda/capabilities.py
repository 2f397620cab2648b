"""What the CUDA executor takes of a program's steps."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.ir.opdef import OpDef
from cacheir.runtime.executor import Capabilities, ExecutorOptions
from cacheir.runtime.row_outputs import WANTED
from cacheir.schedule.program import Program
from cacheir.schedule.row_order import varying_ops
from cacheir_cuda.options import read_options
from cacheir_cuda.pool import DTYPES

# Matrices and activations of 16 bits move keys and values by about 1e-2 of a page's largest.
_NARROW_MATRICES = 0.1


def capabilities_of(
    program: Program, ops: Mapping[str, OpDef], options: ExecutorOptions, *, overlaps: bool = False
) -> Capabilities:
    """Within these the engine plans. Bits are promised under ``batch_invariant`` where no op may break that.

    ``overlaps`` says that a step may be on a device's queue when ``submit`` returns.
    """
    invariant = options.batch_invariant and not options.unfuse and not varying_ops(program, ops)
    return Capabilities(
        determinism="bit" if invariant else "tolerance",
        heads=WANTED,
        page_tokens=(),
        kv_formats=tuple(DTYPES),
        row_classes=tuple(program.schedules["decode"].row_classes),
        max_rows=program.max_rows,
        max_tokens=program.max_tokens,
        run_ahead=True,
        masks=True,
        overlaps=overlaps,
        stops_ahead=True,
        begins_ahead=overlaps,
        rounding=Capabilities.rounding if read_options(options.extra).cuda_dtype == "float32" else _NARROW_MATRICES,
    )
