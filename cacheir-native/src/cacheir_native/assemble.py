"""Puts a program into a runner: reserves the arena, packs weights, emits every instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cacheir.errors import BackendError
from cacheir.schedule.flatten import Launch
from cacheir.schedule.program import Program
from cacheir_native.arena import lay_out
from cacheir_native.code import Buffer, Code, CodeWriter, HostCall, Instruction
from cacheir_native.instructions import Form
from cacheir_native.join import join
from cacheir_native.weights import PackedWeights

# The heads that the runner has instructions for; it copies the rows of head.hidden itself.
HEADS = ("head.greedy", "head.sampled", "head.logits")


@dataclass(frozen=True)
class Stretch:
    """Instructions ``first`` to ``last`` - 1 of a section, run without a stop."""

    first: int
    last: int


@dataclass(frozen=True)
class Assembled:
    """A program in a runner.

    ``main`` is what a step of a mode does in order, ``instructions`` what was emitted by section. ``places`` has the
    arena offset of each buffer that a host call touches. ``host_heads`` (mode, head) are those that the runner has no
    section for.
    """

    main: Mapping[str, Sequence[Stretch | HostCall]]
    instructions: Mapping[str, Sequence[Instruction]]
    places: Mapping[Buffer, int]
    host_heads: Mapping[tuple[str, str], Sequence[Launch]]

    @property
    def host_calls(self) -> int:
        """How many ops run by their meaning, over all modes and heads."""
        calls = sum(isinstance(part, HostCall) for parts in self.main.values() for part in parts)
        return calls + len(self.host_heads)

    @property
    def host_ops(self) -> tuple[str, ...]:
        """The names of those ops, each once."""
        called = [part.launch for parts in self.main.values() for part in parts if isinstance(part, HostCall)]
        heads = (launch for launches in self.host_heads.values() for launch in launches)
        in_heads = [launch for launch in heads if not launch.choice(1).kernel]
        return tuple(dict.fromkeys(launch.op.name for launch in (*called, *in_heads)))


def assemble(
    runner: Any,
    program: Program,
    launches: Mapping[tuple[str, str], Sequence[Launch]],
    forms: Mapping[str, Callable[[Launch], Form | tuple[Form, ...]]],
    weights: PackedWeights,
) -> Assembled:
    """``launches`` are by mode and graph, ``forms`` the entries of the chosen kernels by name."""
    layer_rows = [{layer: row for row, layer in enumerate(layers)} for layers in program.group_layers]
    codes: dict[tuple[str, str], Code] = {}
    for (mode, graph), list_ in launches.items():
        module = program.modules[mode]
        bounds = {name: most for name, _, most in module.graph(graph).dims}
        writer = CodeWriter(forms, bounds, layer_rows, head=graph != module.main.name)
        code = codes[mode, graph] = writer.write(list_)
        join(code)
        if code.native and graph in (module.main.name, *HEADS):  # packed while the other codes are written
            for use in (use for step in code.steps if isinstance(step, Instruction) for use in step.weights.values()):
                weights.handle(use)
    host_heads = {
        key: launches[key]
        for key, code in codes.items()
        if key[1] != program.modules[key[0]].main.name and not code.native
    }
    native = {key: code for key, code in codes.items() if key not in host_heads}
    return _Assembler(runner, program, weights, native, host_heads).run()


class _Assembler:
    def __init__(
        self,
        runner: Any,
        program: Program,
        weights: PackedWeights,
        codes: Mapping[tuple[str, str], Code],
        host_heads: Mapping[tuple[str, str], Sequence[Launch]],
    ) -> None:
        self._runner = runner
        self._program = program
        self._weights = weights
        self._codes = codes
        self._host_heads = host_heads
        self._places: dict[Buffer, int] = {}
        self._regions: dict[str, int] = {}

    def run(self) -> Assembled:
        self._reserve()
        main: dict[str, list[Stretch | HostCall]] = {}
        instructions: dict[str, list[Instruction]] = {}
        for (mode, graph), code in self._codes.items():
            if graph == self._program.modules[mode].main.name:
                main[mode] = self._emit_main(mode, code)
                instructions[mode] = [step for step in code.steps if isinstance(step, Instruction)]
            elif graph in HEADS:
                section = f"{mode}/{graph}"
                self._emit_head(section, code)
                instructions[section] = [step for step in code.steps if isinstance(step, Instruction)]
        return Assembled(main, instructions, self._places, self._host_heads)

    def _reserve(self) -> None:
        """One frame for all code, which runs one after the other, and a region each for what outlives it."""
        frames = [lay_out(code) for code in self._codes.values()]
        base = self._runner.reserve(max([64, *(frame.nbytes for frame in frames)]))
        for frame in frames:
            self._places |= {buffer: base + offset for buffer, offset in frame.places.items()}
        sizes: dict[str, int] = {}
        outside: dict[Buffer, str] = {}
        for (mode, graph), code in self._codes.items():
            head = graph != self._program.modules[mode].main.name
            for buffer in (*code.outputs.values(), *([code.rows] if code.rows else [])):
                name = f"{'head' if head else 'main'} {buffer.region}"
                outside[buffer] = name
                sizes[name] = max(sizes.get(name, 0), buffer.nbytes)
        regions = {name: self._runner.reserve(nbytes) for name, nbytes in sizes.items()}
        self._places |= {buffer: regions[name] for buffer, name in outside.items()}

    def _emit_main(self, mode: str, code: Code) -> list[Stretch | HostCall]:
        parts: list[Stretch | HostCall] = []
        first = number = 0
        for step in code.steps:
            if isinstance(step, HostCall):
                if number > first:
                    parts.append(Stretch(first, number))
                parts.append(step)
                first = number
            else:
                number = self._emit(mode, step) + 1
        if number > first:
            parts.append(Stretch(first, number))
        if "0" not in code.outputs:
            raise BackendError(f"main of {mode} yields no rows that an op computed, so that its heads have nothing")
        rows = code.outputs["0"]
        self._runner.set_output(mode, self._places[rows], rows.width)
        return parts

    def _emit_head(self, section: str, code: Code) -> None:
        if code.rows is None:
            raise BackendError(f"{section} does not read the rows that it is given")
        for step in code.steps:
            assert isinstance(step, Instruction)
            self._emit(section, step)
        most = code.rows.nbytes // (4 * code.rows.width)
        self._runner.set_input(section, self._places[code.rows], code.rows.width, most)
        if "0" in code.outputs:
            logits = code.outputs["0"]
            self._runner.set_logits(section, self._places[logits], logits.width)

    def _emit(self, section: str, step: Instruction) -> int:
        operands: dict[str, Any] = dict(step.numbers)
        operands |= {name: self._places[buffer] for name, buffer in (step.reads | step.writes).items()}
        operands |= {name: self._weights.handle(use) for name, use in step.weights.items()}
        index: int = self._runner.emit(section, step.opcode, **operands)
        return index


def main_sizes(inputs: Mapping[str, Any]) -> dict[str, int]:
    """The size names of main for a step whose arrays are ``inputs``."""
    sizes = {"T": len(inputs["tokens"]), "B": len(inputs["row_starts"]) - 1, "R": len(inputs["head_rows"])}
    if "page_table" in inputs:
        sizes["M"] = inputs["page_table"].shape[1]
    return sizes
