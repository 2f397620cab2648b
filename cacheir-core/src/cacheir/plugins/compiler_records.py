"""Records of the compiler: passes, kernels, exporters, quantised formats and quantisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from cacheir.plugins.markers import PROVISIONAL, STABLE
from cacheir.plugins.record import check_choice, check_fields, record
from cacheir.plugins.ref import Lazy

if TYPE_CHECKING:
    import numpy as np

    from cacheir.ir.graph import Graph, Op
    from cacheir.ir.types import Type
    from cacheir.models.decoder_spec import DecoderSpec
    from cacheir.pipeline.context import PassContext


class Stage(str, Enum):
    """Where in the pipeline a pass runs. A pass never sees a graph from an earlier stage.

    No pass can join ``PROGRAM`` and ``PLAN``: core's own steps run there, and their records carry these stages.
    """

    LOGICAL = "logical"  # one module; knows nothing of mode, target or cache
    PROGRAM = "program"  # steps that change signatures and calls, such as prefill-decode-specialization
    MODE = "mode"  # once for prefill and once for decode; the cache is explicit state
    TARGET = "target"  # the same two modules, now for one target and one quantisation
    PLAN = "plan"  # steps from program to plan: kernel selection, schedule, memory

    def __str__(self) -> str:
        return self.value


@record(level=STABLE)
class PassSpec:
    """A graph pass: what it is called, where it runs, what must run before it.

    ``run`` is pure: it returns its argument, the same object, where it has nothing to do.
    """

    name: str
    run: Lazy[Callable[[Graph, PassContext], Graph]]
    stage: Stage
    summary: str
    after: tuple[str, ...] = ()  # run later than these, where they are present
    before: tuple[str, ...] = ()  # run earlier than these, where they are present
    requires: tuple[str, ...] = ()  # these must be present, and run earlier
    modes: tuple[str, ...] = ()  # () means every mode
    targets: tuple[str, ...] = ()  # () means every target
    default: bool = True  # part of the pipeline unless left out by name; False: only when asked for
    options: Lazy[type] | None = None  # a frozen dataclass; `fuse-qkv{min-rows=4}` on the command line

    def __post_init__(self) -> None:
        check_fields(self)
        if self.name in (*self.after, *self.before, *self.requires):
            raise ValueError(f"pass {self.name!r} is ordered against itself")
        if self.stage in (Stage.PROGRAM, Stage.PLAN):
            raise ValueError(f"pass {self.name!r}: stage {self.stage} is for core's own steps")


@record(level=STABLE)
class PassRecord:
    """What one pass did to one graph. The compiler writes one for every pass it runs or skips."""

    name: str
    plugin: str
    stage: Stage
    mode: str  # "prefill", "decode", or "" in the logical stage
    outcome: str  # "changed", "unchanged", "skipped"
    before: str  # graph hash
    after: str  # graph hash
    seconds: float
    graph: str = ""  # the graph of the module, "" where the record is about the whole module
    diff: str = ""  # unified diff of the two texts; "" unless changed
    counts: Mapping[str, int] = field(default_factory=dict)  # op -> how many more (or fewer) there are
    rewrites: int = 0  # sites that the pass's rules changed
    notes: tuple[str, ...] = ()  # what the pass said through PassContext.note
    # One entry a rewritten site: the op's name, the result it was known by, and the results of what came instead.
    sites: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice(self, "outcome", ("changed", "unchanged", "skipped"))


@record(level=PROVISIONAL)
class KernelSpec:
    """One way to compute one op on one target.

    ``refuses(op)`` gives None to accept, else the reason in words. ``cost(op, sizes)`` gives (bytes moved, operations)
    for a binding of the size names (``S`` is the keys of a row); without it they follow from the op's meaning, its
    weights counted at ``weight_bytes`` an element. ``workspace(op, sizes)`` gives the bytes of scratch it needs.
    """

    name: str  # "cpu.numpy.rms_norm", unique
    op: str  # "rms_norm"
    target: str  # "cpu.numpy", "cpu.native", "cuda.torch", "cuda.triton"
    entry: Lazy[Callable[..., Any]]  # what the target says: a function, an instruction's name, a cubin
    dtypes: tuple[str, ...] = ()  # element types of the first operand it takes, () for any
    refuses: Lazy[Callable[[Op], str | None]] | None = None
    writes_out: bool = True  # takes out= buffers of the memory plan; False: returns new arrays
    # Each result may be given the buffer of an operand of its type, one for each; of a reshape, that of its operand.
    in_place: bool = False
    in_place_over: tuple[int, ...] = ()  # the numbers of those operands, () for all of the result's type
    rank: int = 0  # of the kernels that accept on one target, the highest wins
    cost: Lazy[Callable[[Op, Mapping[str, int]], tuple[float, float]]] | None = None
    weight_bytes: int = 0  # bytes of an element of its weights as it reads them; 0: as the model stores them
    # How it wants its weights, in the target's words (docs/architecture.md, Layouts of weights); () for as stored.
    layouts: tuple[str, ...] = ()
    workspace: Lazy[Callable[[Op, Mapping[str, int]], int]] | None = None
    numerics: str = "f32"  # "f32", "int8-activations", ...; --precise refuses all but "f32"
    row_order: str = "fixed"  # "varies": a row's bits depend on how many rows there are
    graph_safe: bool = True  # may be captured in a device graph
    min_rows: int = 0  # fewest rows it takes
    max_rows: int = 0  # most rows it takes, 0 for no limit

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice(self, "row_order", ("fixed", "varies"))
        if self.min_rows < 0 or self.max_rows < 0 or 0 < self.max_rows < self.min_rows:
            raise ValueError(f"kernel {self.name!r}: rows from {self.min_rows} to {self.max_rows} is no range")


@record(level=PROVISIONAL)
class KernelChoice:
    """A selector's choice among the candidates; ``reason`` goes into the schedule."""

    kernel: KernelSpec
    reason: str


@record(level=STABLE)
class ExporterSpec:
    """A writer of a compiled program, or of a part of it, as text: ``run(what, out)``.

    ``takes`` says what: one ``graph``, the ``module`` of one mode, or the whole ``artifact``, which has pass records,
    kernels and plans too. ``suffix`` is of the file it would be saved in: ``.dot``.
    """

    name: str
    summary: str
    run: Lazy[Callable[[Any, TextIO], None]]
    suffix: str
    takes: str = "graph"

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice(self, "takes", ("graph", "module", "artifact"))
        if not self.suffix.startswith("."):
            raise ValueError(f"exporter {self.name!r}: suffix must begin with '.', not {self.suffix!r}")


@record(level=STABLE)
class QuantFormatSpec:
    """A block format of quantised storage: ``block`` elements of a row in ``block_bytes`` bytes.

    ``unpack`` takes u8 [n, block_bytes] to f32 [n, block]; ``pack`` is its partner, f32 [n, block] to
    u8 [n, block_bytes], None where CacheIR can only read the format. ``dtype`` is what a value unpacks to in a graph.
    With ``block`` 0 the whole row is one block of any length: ``block_bytes`` bytes, then one for each element.
    ``fills_up``: a row may end inside a block; what the block holds behind the row's end is of no account.
    """

    name: str  # "q4_1"
    summary: str
    block: int  # elements
    block_bytes: int
    unpack: Lazy[Callable[[np.ndarray], np.ndarray]]
    pack: Lazy[Callable[[np.ndarray], np.ndarray]] | None = None
    dtype: str = "f32"
    fills_up: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block < 0 or self.block_bytes < 1:
            raise ValueError(
                f"format {self.name!r}: a block of {self.block} elements in {self.block_bytes} bytes is none"
            )

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each element, scales and minima counted, but not what a long row has once."""
        return 8 * self.block_bytes / self.block if self.block else 8.0

    def row_blocks(self, columns: int) -> int:
        """Blocks of a row of ``columns`` elements; ValueError where it is no whole number of them and must be."""
        if self.block == 0:
            return 1
        if columns % self.block and not self.fills_up:
            raise ValueError(f"a row of {columns} elements is no whole number of {self.name} blocks of {self.block}")
        return -(-columns // self.block)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` elements; ValueError as ``row_blocks``."""
        return self.block_bytes + columns if self.block == 0 else self.row_blocks(columns) * self.block_bytes


@record(level=STABLE)
class UnpackerSpec:
    """A way to make a dense weight of the tensors that a model stores for it; the recipe ``unpack`` names it.

    ``run(*tensors, dtype, shape, **attrs)`` gives an array of ``shape`` that holds ``dtype`` as CacheIR stores it (bf16
    as uint16). ``tensors`` are arrays over mapped files which nobody may write to, ``attrs`` the recipe's other
    attributes. It raises MalformedModelError where the data cannot be what the recipe says.
    """

    name: str  # "awq"
    summary: str
    run: Lazy[Callable[..., np.ndarray]]

    def __post_init__(self) -> None:
        check_fields(self)


@record(level=STABLE)
class QuantSpec:
    """A quantiser: a method that picks the storage format of each weight; ``--quant NAME`` finds it.

    ``plan(spec, types, options) -> {canonical weight key: format name}`` sees the types of all weights and no data; a
    weight it leaves out stays as it is. ``formats`` lists what it may pick. ``options`` is a frozen dataclass or None.
    ``calibrate(layer, formats)`` makes it one that needs a text: it is given what each layer's matrices were fed with
    (``cacheir.quantisers.calibration.CalibratedLayer``) and returns other weights for the layer, which compute the same
    and round better.
    """

    name: str  # "int4-awq"
    summary: str
    formats: tuple[str, ...]
    plan: Lazy[Callable[[DecoderSpec, Mapping[str, Type], Any], Mapping[str, str]]]
    options: Lazy[type] | None = None
    calibrate: Lazy[Callable[..., Mapping[str, np.ndarray]]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
