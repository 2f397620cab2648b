"""A graph as the runner's code: instructions and host calls over buffers, each of which is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cacheir.errors import BackendError
from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.types import KVType, TensorType
from cacheir.schedule.flatten import Launch, Place
from cacheir_native.instructions import Form, WeightUse


@dataclass(eq=False)
class Buffer:
    """A value in the arena: ``nbytes`` at the most rows. ``region`` names a place outside the frame that it lies in."""

    type: TensorType
    nbytes: int
    sizes: Mapping[str, Dim]
    region: str = ""

    @property
    def width(self) -> int:
        """Elements of a row."""
        width = 1
        for size in self.type.shape[1:]:
            width *= size.evaluate({})
        return width


Operand = Buffer | Place


@dataclass(eq=False)
class Instruction:
    """An instruction with its buffers by operand name. ``launches`` are the ops that it stands for, ``kernel`` is the
    first one's.
    """

    opcode: str
    launches: list[Launch]
    kernel: str
    reads: dict[str, Buffer]
    writes: dict[str, Buffer]
    weights: dict[str, WeightUse]
    numbers: dict[str, int | float]

    @property
    def name(self) -> str:
        """The nodes that it stands for, in order."""
        return "+".join(launch.node for launch in self.launches)


@dataclass(eq=False)
class HostCall:
    """An op without an instruction, which runs by its meaning; operands that are no buffers are weights, inputs of the
    step and states.
    """

    launch: Launch
    operands: tuple[Operand, ...]
    results: tuple[Buffer | None, ...]  # None for a state


@dataclass(eq=False)
class Code:
    """The code of main or of a head. ``outputs`` are what it yields, ``rows`` is where a head reads its rows."""

    steps: list[Instruction | HostCall]
    outputs: dict[str, Buffer]
    rows: Buffer | None = None

    @property
    def native(self) -> bool:
        """Whether nothing of it needs the host."""
        return all(isinstance(step, Instruction) for step in self.steps)


def reads_of(step: Instruction | HostCall) -> list[Buffer]:
    """The buffers that ``step`` reads."""
    if isinstance(step, Instruction):
        return list(step.reads.values())
    return [operand for operand in step.operands if isinstance(operand, Buffer)]


def writes_of(step: Instruction | HostCall) -> list[Buffer]:
    """The buffers that ``step`` fills."""
    found = step.writes.values() if isinstance(step, Instruction) else step.results
    return [buffer for buffer in found if buffer is not None]


@dataclass
class CodeWriter:
    """Writes code from launches. ``forms`` gives the instructions of a kernel by its name, ``bounds`` the most rows by
    size name, ``layer_rows`` the row of a layer in its group's pool.
    """

    forms: Mapping[str, Callable[[Launch], Form | tuple[Form, ...]]]
    bounds: Mapping[str, int]
    layer_rows: Sequence[Mapping[int, int]]
    head: bool
    _current: dict[tuple[str, str, int], Buffer] = field(default_factory=dict)

    def write(self, launches: Sequence[Launch]) -> Code:
        """The code of one graph, in the order of its launches."""
        code = Code([], {})
        if self.head:
            code.rows = self._head_rows(launches)
        for launch in launches:
            code.steps.extend(self._step(launch))
        code.outputs = {name: buffer for (kind, name, _), buffer in self._current.items() if kind == "output"}
        return code

    def _step(self, launch: Launch) -> Iterator[Instruction | HostCall]:
        kernel = launch.choice(1).kernel
        if not kernel:
            operands = tuple(self._operand(place) for place in launch.reads)
            results = tuple(
                None if isinstance(place.type, KVType) else self._new(place, launch) for place in launch.writes
            )
            yield HostCall(launch, operands, results)
            return
        forms = self.forms[kernel](launch)
        for form in forms if isinstance(forms, tuple) else (forms,):
            yield from self._instruction(form, launch, kernel)

    def _instruction(self, form: Form, launch: Launch, kernel: str) -> Iterator[Instruction]:
        reads = {name: self._read(launch.reads[index], launch) for name, index in form.reads.items()}
        if form.alias:
            self._alias(launch.writes[0], reads["x"], launch)
            return
        writes = {name: self._new(launch.writes[index], launch) for name, index in form.writes.items()}
        numbers = dict(form.numbers)
        if "layer" in numbers:
            numbers["layer"] = self.layer_rows[int(numbers["group"])][int(numbers["layer"])]
        if not self.head and form.opcode not in ("gather_rows", "embedding", "rope_table"):
            if self._has_head_rows([*reads.values(), *writes.values()], launch):
                numbers["head_rows"] = 1
        yield Instruction(form.opcode, [launch], kernel, reads, writes, dict(form.weights), numbers)

    def _has_head_rows(self, buffers: Sequence[Buffer], launch: Launch) -> bool:
        names = {str(buffer.type.shape[0].substitute(buffer.sizes)) for buffer in buffers}
        if names == {"T"} or not names:
            return False
        if names == {"R"}:
            return True
        raise BackendError(
            f"@{launch.graph}: %{launch.node} has rows of {' and '.join(sorted(names))}, "
            "the native runner has those of tokens T and of head rows R"
        )

    def _head_rows(self, launches: Sequence[Launch]) -> Buffer | None:
        for launch in launches:
            for place in launch.reads:
                if place.kind == "input" and place.name == "rows":
                    return self._new(place, launch, "rows")
        return None

    def _operand(self, place: Place) -> Operand:
        return self._current.get(_key(place), place)

    def _read(self, place: Place, launch: Launch) -> Buffer:
        buffer = self._current.get(_key(place))
        if buffer is None:
            raise BackendError(f"@{launch.graph}: %{launch.node} reads {place.name or place.kind}, which nothing wrote")
        return buffer

    def _new(self, place: Place, launch: Launch, region: str = "") -> Buffer:
        assert isinstance(place.type, TensorType)
        nbytes = dtype_bytes(place.type.dtype)
        for size in place.type.shape:
            nbytes *= size.substitute(launch.sizes).evaluate(self.bounds)
        region = region or ("output" if place.kind == "output" else "")
        buffer = Buffer(place.type, nbytes, launch.sizes, region)
        self._current[_key(place)] = buffer
        return buffer

    def _alias(self, place: Place, source: Buffer, launch: Launch) -> None:
        """``place`` is ``source`` under another shape; what the graph yields needs a place of its own."""
        if place.kind == "output":
            raise BackendError(
                f"@{launch.graph}: %{launch.node} yields a reshaped value, which has no place of its own"
            )
        self._current[_key(place)] = source


def _key(place: Place) -> tuple[str, str, int]:
    return (place.kind, "" if place.kind == "arena" else place.name, place.offset)
