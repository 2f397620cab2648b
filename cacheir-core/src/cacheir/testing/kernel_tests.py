"""Checks that every kernel must pass: a kernel against the meaning of its op. Subclass ``KernelTests``::

class TestKernels(KernelTests):
    plugin = "cacheir_relu_squared"
"""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import FLOATS, numpy_dtype
from cacheir.ir.graph import Op
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, TensorType, Type
from cacheir.plugins import KernelSpec, resolve
from cacheir.plugins.installation import Installation
from cacheir.reference.bf16 import from_bf16
from cacheir.reference.interpreter import Interpreter
from cacheir.schedule.plan_memory import takes_the_same
from cacheir.testing.arrays import example_op, random_operands
from cacheir.testing.hosts import plugin_host

# Largest error beside the largest element of the expected result, by element type of the result.
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}

_GUARD_BYTES = 64


@dataclass(frozen=True)
class Case:
    """A kernel, and an example of its op that it accepts (or refuses with a reason)."""

    kernel: KernelSpec
    number: int
    op: Op
    refusal: str | None

    def __str__(self) -> str:
        return f"{self.kernel.name}-{self.number}"


class KernelTests:
    """What holds for every kernel of ``plugin``, on its op's examples.

    ``needs`` names the plugins whose ops they compute, where those are not core's or ``plugin``'s own; the kernels of
    ``needs`` are not looked at. Override ``prepare`` where kernels take weights in a layout of their own or pools of
    their own kind, and ``tolerance`` where one rounds more than its element type.
    """

    plugin: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    _runs: ClassVar[dict[tuple[Any, ...], _Run]]  # a kernel is called once for a case, and several checks look at that

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls._runs = {}

    def prepare(self, kernel: KernelSpec, op: Op, operands: Sequence[Any]) -> list[Any]:
        """What the kernel is called with: ``operands`` are arrays (bf16 as uint16), ``QuantArray`` and ``KVPool``."""
        return list(operands)

    def pages(self, pool: Any) -> NDArray[np.float32]:
        """The whole content of a pool that ``prepare`` made, f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        content: NDArray[np.float32] = pool.read_pages(range(pool.pages))
        return content

    def tolerance(self, kernel: KernelSpec, dtype: str) -> float:
        """Largest error beside the largest element of the expected result."""
        return TOLERANCE.get(dtype, 0.0)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run each check on each case."""
        if "accepted" in metafunc.fixturenames:
            cases = [case for case in self.cases() if case.refusal is None]
            metafunc.parametrize("accepted", cases, ids=map(str, cases))
        if "refused" in metafunc.fixturenames:
            cases = [case for case in self.cases() if case.refusal is not None]
            metafunc.parametrize("refused", cases, ids=map(str, cases))

    def cases(self) -> Iterator[Case]:
        """Every kernel on every example of its op whose element type it declares."""
        definitions = self._installation.ops.by_name()
        for kernel in self._kernels:
            assert kernel.op in definitions, (
                f"{kernel.name} is for the op {kernel.op}, which neither core nor {self.plugin} has: name the plugin"
                " that brings it in `needs`"
            )
            definition = definitions[kernel.op]
            for number, (types, attrs) in enumerate(resolve(definition.examples)() if definition.examples else ()):
                op = example_op(definition, types, attrs)
                if not _declared(kernel, types):
                    continue
                refusal = resolve(kernel.refuses)(op) if kernel.refuses is not None else None
                yield Case(kernel, number, op, refusal)

    def test_every_kernel_takes_an_example(self) -> None:
        """A kernel that refuses all examples of its op would never be tried."""
        taken = {case.kernel.name for case in self.cases() if case.refusal is None}
        idle = sorted({kernel.name for kernel in self._kernels} - taken)
        assert not idle, f"{', '.join(idle)} take no example of their op: give the op's `examples` one that they take"

    def test_equals_the_definition(self, accepted: Case) -> None:
        """The op's decomposition or reference kernel is what it means."""
        run = self._run(accepted)
        for name, found, expected, dtype in zip(run.names, run.found, run.expected, run.dtypes):
            _assert_close(accepted, name, found, expected, dtype, self.tolerance(accepted.kernel, dtype))

    def test_nan_gives_the_token_of_the_definition(self, accepted: Case) -> None:
        """A kernel that makes token ids of numbers must not turn a NaN into a token (-1 says so)."""
        first, made = accepted.op.operands[0].type, accepted.op.results[0].type
        if not isinstance(first, TensorType) or first.dtype not in FLOATS or made.dtype != "i32":
            return
        run = self._run(accepted, nan=True)
        _assert_close(accepted, run.names[0], run.found[0], run.expected[0], "i32", 0)

    def test_writes_only_into_out(self, accepted: Case) -> None:
        """What lies around a buffer is another op's."""
        run = self._run(accepted)
        spilt = [name for name, around in zip(run.names, run.guards) if not around]
        assert not spilt, f"{accepted}: writes beyond the ends of {', '.join(spilt)}: keep to the shape of out"

    def test_does_not_change_operands(self, accepted: Case) -> None:
        """Other ops read them later; only a state op changes its state."""
        changed = self._run(accepted).changed
        assert not changed, f"{accepted}: changes its operands {', '.join(changed)}: copy before writing"

    def test_in_place_gives_the_same(self, accepted: Case) -> None:
        """A kernel that says ``in_place`` may get operands' buffers as ``out``, each for one of its results."""
        for reuse in _reuses(accepted):
            run = self._run(accepted, reuse=reuse)
            taken = ", ".join(
                f"{accepted.op.results[result]} in place of {accepted.op.operands[operand]}"
                for result, operand in reuse.items()
            )
            for found, expected, dtype in zip(run.found, run.expected, run.dtypes):
                _assert_close(accepted, taken, found, expected, dtype, self.tolerance(accepted.kernel, dtype))

    def test_a_refusal_is_a_sentence(self, refused: Case) -> None:
        """``explain`` shows it to people."""
        reason = refused.refusal
        assert isinstance(reason, str) and " " in reason.strip() and "\n" not in reason, (
            f"{refused}: refuses with {reason!r}: return None to accept, or the reason in words on one line"
        )

    @cached_property
    def _installation(self) -> Installation:
        return plugin_host(*self.needs, self.plugin)

    @cached_property
    def _kernels(self) -> tuple[KernelSpec, ...]:
        others = {kernel.name for kernel in plugin_host(*self.needs).kernels} if self.needs else set()
        return tuple(kernel for kernel in self._installation.kernels if kernel.name not in others)

    def _run(self, case: Case, reuse: Mapping[int, int] | None = None, nan: bool = False) -> _Run:
        key = (str(case), *(reuse or {}).items(), nan)
        if key not in self._runs:
            self._runs[key] = self._call(case, reuse, nan)
        return self._runs[key]

    def _call(self, case: Case, reuse: Mapping[int, int] | None, nan: bool) -> _Run:
        """Call the kernel, on data that depends on the case alone; ``nan`` puts a NaN into the first operand.

        ``reuse`` gives results, by number, the buffers of operands.
        """
        rng = np.random.default_rng(zlib.crc32(str(case).encode()))
        operands = random_operands(rng, case.op, self._installation.quant_formats.by_name())
        if nan and operands[0].size:
            operands[0].flat[-1] = 0x7FC0 if operands[0].dtype == np.uint16 else np.nan  # bf16 is its bits
        expected = _meaning(self._installation.ops.by_name(), case.op, copy.deepcopy(operands))
        given = self.prepare(case.kernel, case.op, operands)
        before = [_snapshot(self, operand) for operand in given]
        outs = [_guarded(value.type) for value in case.op.results if isinstance(value.type, TensorType)]
        targets = [out for out, _ in outs]
        for result, number in (reuse or {}).items():
            targets[result] = given[number].reshape(targets[result].shape)
        attrs = dict(case.op.attrs)
        function = resolve(case.kernel.entry)
        if case.kernel.writes_out:
            function(*given, out=targets[0] if len(targets) == 1 else tuple(targets), **attrs)
            results: list[Any] = list(targets)
        else:
            outcome = function(*given, **attrs)
            results = list(outcome) if isinstance(outcome, tuple) else [outcome]
        state_op = any(isinstance(value.type, KVType) for value in case.op.results)
        if state_op:
            results = [next(operand for operand, old in zip(given, before) if old is not None and _is_pool(operand))]
        return _Run(
            names=[str(value) for value in case.op.results],
            dtypes=[value.type.dtype for value in case.op.results],
            found=[self.pages(result) if _is_pool(result) else result for result in results],
            expected=[self.pages_of_meaning(result) for result in expected],
            guards=[_intact(guard) for _, guard in outs],
            changed=[
                str(value)
                for value, operand, old in zip(case.op.operands, given, before)
                if old is not None and not (state_op and _is_pool(operand)) and not _same(old, _snapshot(self, operand))
            ],
        )

    def pages_of_meaning(self, result: Any) -> Any:
        """The content of a ``KVPool`` of the op's meaning, arrays as they are."""
        return result.read_pages(range(result.pages)) if _is_pool(result) else result


@dataclass(frozen=True, kw_only=True)
class _Run:
    names: Sequence[str]
    dtypes: Sequence[str]
    found: Sequence[Any]
    expected: Sequence[Any]
    guards: Sequence[bool]
    changed: Sequence[str]


def _declared(kernel: KernelSpec, types: Sequence[Type]) -> bool:
    """Whether the kernel says that it takes this element type and this number of rows."""
    first = types[0] if types else None
    if kernel.dtypes and (first is None or first.dtype not in kernel.dtypes):
        return False
    batched = next((type_ for type_ in types if isinstance(type_, TensorType)), None)
    rows = batched.shape[0].constant if batched is not None and batched.shape else 0
    return kernel.min_rows <= rows and (not kernel.max_rows or rows <= kernel.max_rows)


def _reuses(case: Case) -> Iterator[Mapping[int, int]]:
    """Every way in which results may take over operands' buffers: result number -> operand number."""
    kernel, op = case.kernel, case.op
    if not kernel.in_place:
        return
    over = kernel.in_place_over or range(len(op.operands))
    hosts: list[list[int | None]] = [
        [None, *(n for n in over if takes_the_same(op.name, op.operands[n].type, value.type))] for value in op.results
    ]
    for chosen in itertools.product(*hosts):
        taken = [number for number in chosen if number is not None]
        if taken and len(set(taken)) == len(taken):
            yield {result: number for result, number in enumerate(chosen) if number is not None}


def _meaning(ops: Mapping[str, OpDef], op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
    return Interpreter(ops).apply(op, operands, {})


def _guarded(type_: Type) -> tuple[NDArray[Any], tuple[NDArray[np.uint8], int]]:
    """A buffer to be filled, in the middle of one whose ends must stay as they are."""
    assert isinstance(type_, TensorType)
    dtype, shape = numpy_dtype(type_.dtype), type_.sizes({})
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    whole = np.full(nbytes + 2 * _GUARD_BYTES, 0xFF, np.uint8)  # NaN in every floating point type
    return whole[_GUARD_BYTES : _GUARD_BYTES + nbytes].view(dtype).reshape(shape), (whole, nbytes)


def _intact(guard: tuple[NDArray[np.uint8], int]) -> bool:
    whole, nbytes = guard
    return bool((whole[:_GUARD_BYTES] == 0xFF).all() and (whole[_GUARD_BYTES + nbytes :] == 0xFF).all())


def _is_pool(operand: Any) -> bool:
    return hasattr(operand, "read_pages")


def _snapshot(tests: KernelTests, operand: Any) -> Any:
    """What an operand holds now, None where it cannot be looked at."""
    if _is_pool(operand):
        return tests.pages(operand).copy()
    if isinstance(operand, np.ndarray):
        return operand.copy()
    blocks = getattr(operand, "blocks", None)
    return None if blocks is None else blocks.copy()


def _same(old: NDArray[Any], new: NDArray[Any]) -> bool:
    return old.tobytes() == new.tobytes()


def _assert_close(case: Case, name: str, found: Any, expected: Any, dtype: str, tolerance: float) -> None:
    assert isinstance(found, np.ndarray), f"{case}: {name} is a {type(found).__name__}, not an array"
    is_type, wanted = f"{found.dtype}{list(found.shape)}", f"{expected.dtype}{list(expected.shape)}"
    assert is_type == wanted, f"{case}: {name} is {is_type}, its definition gives {wanted}"
    if dtype == "bf16" and found.dtype == np.uint16:
        found, expected = from_bf16(found), from_bf16(expected)
    if found.dtype.kind != "f":
        wrong = int((found != expected).sum())
        assert not wrong, f"{case}: {wrong} of {found.size} elements of {name} differ from the definition"
        return
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    close = np.isclose(found, expected, rtol=0, atol=tolerance * max(1.0, largest), equal_nan=True)
    assert close.all(), (
        f"{case}: {int((~close).sum())} of {found.size} elements of {name} are off by more than {tolerance} of "
        f"{largest:.3g}, the first {found[~close][0]!r} for {expected[~close][0]!r}: compare with "
        f"`{case.op.name}` in docs/ops.md"
    )
