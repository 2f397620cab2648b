"""Checks a graph's kernels: what one reads before it waits must not be written by a kernel that may still run.

A kernel that is joined by a programmatic edge begins while those before it run (``let_next_start`` is its first
instruction), and ``wait_for_previous`` is over when the kernel before it has ended, which had waited itself. So what is
read or written behind the wait is in order, whatever it is; what is read ahead of it must be older than every kernel
that may be under way. Source of the rule: the programmatic dependent launches of the CUDA programming guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import Structure

from cacheir.errors import BackendError
from cacheir_cuda.chain import arguments, rows_arguments
from cacheir_cuda.chain.launches import KernelLaunch

# So many kernels back, none is under way any more: pages that a step stores, and what it says of rows that ended, are
# read by the one after it, which is a whole step of LEAST_LAYERS layers on (recognise.py).
FAR = 20

_WEIGHTS_OF_PRODUCT = ("weights", "bias", "gain")
# Arguments -> fields that a kernel reads before the wait. The pages that products bring into L2 are no reading.
EARLY: dict[type[Structure], tuple[str, ...]] = {
    arguments.Product: (*_WEIGHTS_OF_PRODUCT, "page_table", "state"),
    arguments.Attention: ("pages", "page_table", "q_gain", "k_gain", "turns", "state"),
    arguments.Advance: ("state", "stops"),
    rows_arguments.RowsProduct: (*_WEIGHTS_OF_PRODUCT, "page_table", "positions"),
    rows_arguments.RowsAttention: (
        "pages", "page_table", "positions", "slots", "row_starts", "q_gain", "k_gain", "turns", "bias",
    ),
    rows_arguments.RowsBegin: (),
    rows_arguments.RowsHead: ("weights",),
    rows_arguments.RowsAdvance: ("produced", "stops"),
}  # fmt: skip
# Arguments -> fields that it writes behind the wait.
WRITTEN: dict[type[Structure], tuple[str, ...]] = {
    arguments.Product: ("out", "out_id", "next", "next_squares"),
    arguments.Attention: ("out", "pages"),
    arguments.Advance: ("row", "next", "squares", "ring", "stops"),
    rows_arguments.RowsProduct: ("out", "next", "next_squares"),
    rows_arguments.RowsAttention: ("out", "pages"),
    rows_arguments.RowsBegin: ("hidden", "next", "squares"),
    rows_arguments.RowsHead: ("best", "best_id"),
    rows_arguments.RowsAdvance: ("begin", "tokens", "ring", "slots", "stops"),
}
# Arguments -> fields that the last step of a graph moves on, where its ``steps`` are not 0.
_MOVED: dict[type[Structure], tuple[str, ...]] = {
    arguments.Advance: ("state",),
    rows_arguments.RowsAdvance: ("positions", "produced"),
}


def checked(launches: Sequence[KernelLaunch]) -> Sequence[KernelLaunch]:
    """``launches`` of one graph, in order. Raises BackendError where one reads too early what another writes."""
    written: dict[int, int] = {}  # address -> the last launch that writes there
    for number, launch in enumerate(launches):
        for name, address in _early(launch):
            writer = written.get(address)
            if writer is not None and number - writer < FAR:
                raise BackendError(
                    f"kernel {number} of a graph, {launch.kernel}, reads {name} before it waits, "
                    f"which kernel {writer}, {launches[writer].kernel}, writes",
                    hint="switch the decode chain off (CACHEIR_CUDA_CHAIN=0), and report it",
                )
        written |= dict.fromkeys(_written(launch.arguments), number)
    return launches


def _early(launch: KernelLaunch) -> Iterator[tuple[str, int]]:
    """(field, address) of what a kernel reads before the wait.

    Those of a prompt's rows read pages behind it, those of a decode step ``slots``: a row may just have ended.
    """
    behind = "pages" if launch.kernel.startswith(("rows_prompt", "rows_append")) else "slots"
    for name in EARLY[type(launch.arguments)]:
        address = getattr(launch.arguments, name)
        if address and name != behind:
            yield name, address


def _written(given: Structure) -> Iterator[int]:
    """The addresses that a kernel with these arguments writes."""
    names = WRITTEN[type(given)]
    if getattr(given, "steps", 0):
        names += _MOVED[type(given)]
    for name in names:
        value = getattr(given, name)
        if isinstance(value, Structure):
            yield from _written(value)
        elif value:
            yield value
