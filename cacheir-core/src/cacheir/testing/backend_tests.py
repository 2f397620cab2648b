"""Checks that every backend must pass, over tiny models and against their meaning. Subclass ``BackendTests``::

class TestBackend(BackendTests):
    plugin = "cacheir_cpu.plugin"
    backend = "cpu"
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from cacheir.errors import BackendError, CacheIRError, UsageError
from cacheir.runtime.executor import WANTS, Step
from cacheir.testing.backend_ahead import BackendAhead
from cacheir.testing.backend_numbers import IDS, BackendNumbers
from cacheir.testing.backend_traces import BackendTraces
from cacheir.testing.tiny_programs import TinyProgram

# How far logits may move by the storage of keys and values, beside the largest logit.
KV_BOUNDS = {"f32": 1e-5, "f16": 1e-2, "bf16": 6e-2, "int8": 0.1}
_COARSEST = 0.3  # a storage format that is not listed: 8 bits of floating point
_DENSE = "interleaved-biased"  # its embedding is no head as well, and not quantised


class BackendTests(BackendNumbers, BackendAhead, BackendTraces):
    """What holds for every backend.

    ``options`` are fields of ``CompileOptions`` and ``executor_options`` of ``ExecutorOptions``; ``page_tokens`` is a
    page size that the backend takes. ``tolerance`` is how far logits may be from their meaning, relative to the
    largest: what the kernels round. A backend that says ``bit`` is held to equal bits, one that says ``tolerance`` to
    ``tolerance``. ``traces`` is how many runs of the engine each tiny decoder gets, and ``trace_steps`` how many steps
    those of all decoders take at least.
    """

    def test_capabilities(self) -> None:
        """What the engine plans within."""
        with self.open() as opened:
            found, program = opened.executor.capabilities(), opened.tiny.program
        assert found.determinism in ("bit", "tolerance"), f"determinism must be bit or tolerance: {found.determinism!r}"
        assert set(found.heads) <= set(WANTS), f"heads must be among {', '.join(WANTS)}: {found.heads}"
        assert "nothing" in found.heads and {"token", "logits"} & set(found.heads), (
            "without nothing, and token or logits, no engine can generate"
        )
        assert (found.max_rows, found.max_tokens) == (program.max_rows, program.max_tokens), (
            "max_rows and max_tokens must be the program's: nothing larger was planned for"
        )
        assert not found.page_tokens or self.page_tokens in found.page_tokens, "page_tokens of the test is none of its"
        assert "f32" in found.kv_formats, "kv_formats must hold f32, which programs have by default"

    def test_pages_are_read_as_written(self, decoder: str) -> None:
        """``read_pages`` gives what ``write_pages`` took, and ``copy_pages`` moves whole pages."""
        with self.open(decoder) as opened:
            for group, kind in enumerate(opened.tiny.program.groups):
                shape = (2, kind.layers, 2, kind.heads, opened.page_tokens, kind.head_dim)
                data = np.random.default_rng(group).standard_normal(shape).astype(np.float32)
                opened.executor.write_pages(group, [3, 1], data)
                opened.executor.copy_pages(group, [(3, 5)])
                read = opened.executor.read_pages(group, [3, 1, 5])
                assert read.dtype == np.float32 and read.shape == (3, *shape[1:]), f"pages are {read.dtype}{read.shape}"
                assert np.array_equal(read, data[[0, 1, 0]]), f"pages of group {group} come back otherwise"

    def test_memory_is_accounted_for(self, decoder: str) -> None:
        """Owned bytes, and those of pages grow with the pages."""
        with self.open(decoder) as opened:
            groups = opened.tiny.program.groups
            page = sum(8 * kind.layers * kind.heads * opened.page_tokens * kind.head_dim for kind in groups)
            before = opened.executor.memory()
            opened.executor.open_pools([3 * opened.pages] * len(groups))
            after = opened.executor.memory()
        grown, least = after.kv - before.kv, 2 * opened.pages * page
        assert before.weights > 0, "memory() counts no weights"
        assert least <= grown <= 1.5 * least + 65536, (
            f"twice as many pages more are {least} bytes, memory() says {grown}"
        )
        assert before.kv >= opened.pages * page, f"memory() counts {before.kv} bytes of pages, there are more"
        assert after.total == after.weights + after.kv + after.arena + after.workspace

    def test_wrong_steps_are_refused_and_change_nothing(self) -> None:
        """A step that nothing was planned for is a RequestError."""
        with self.open() as opened:
            program, before = opened.tiny.program, opened.prefill(0, IDS[:6])
            many = [opened.row(0, [1])] * (program.max_rows + 1)
            self.refused(opened, "prefill", many, "too many rows")
            long = [opened.row(slot, [1] * (program.max_tokens // 2 + 1)) for slot in range(2)]
            self.refused(opened, "prefill", long, "too many tokens")
            at_end = opened.row(0, [1, 2], program.max_seq - 1, pages=(*opened.pages_of(0), *opened.pages_of(7)))
            self.refused(opened, "prefill", [at_end], "a position beyond the program's")
            short = opened.row(0, [1] * 3, opened.page_tokens - 1, pages=opened.pages_of(0)[:1])
            self.refused(opened, "prefill", [short], "too few pages")
            self.same(opened, opened.prefill(0, IDS[:6]), before, "a refused step")

    def test_the_order_of_calls_is_checked(self) -> None:
        """Without a program or pages there is an error that says so; close may come at any time, and twice."""
        with self.open() as opened:
            step = Step(mode="prefill", rows=(opened.row(0, IDS[:2]),))
        closed, tiny = opened.executor, opened.tiny
        self.must_raise(BackendError, "a step after close", lambda: closed.wait(closed.submit(step)))
        closed.close()
        fresh = tiny.unloaded(page_tokens=self.page_tokens, **self.executor_options)
        self.must_raise(BackendError, "memory() before load", fresh.memory)
        fresh.close()
        unpaged = tiny.executor(page_tokens=self.page_tokens, **self.executor_options)
        self.must_raise(BackendError, "a step before open_pools", lambda: unpaged.wait(unpaged.submit(step)))
        counts = [4] * (len(tiny.program.groups) + 1)
        self.must_raise(UsageError, "open_pools with a count too many", lambda: unpaged.open_pools(counts))
        unpaged.close()

    def test_a_row_that_is_not_finite_fails_alone(self) -> None:
        """One sequence's NaN is its own error."""
        whole = self.tiny(_DENSE)
        table = whole.weights.stored("embed").copy()
        table[5] = np.nan
        with self.open(self.tiny(_DENSE, changed={"embed": table})) as opened:
            for want in [want for want in ("token", "logits") if want in opened.executor.capabilities().heads]:
                rows = [opened.row(slot, ids, want=want) for slot, ids in enumerate(([1, 2, 3], [1, 5, 3], [9]))]
                good, bad, other = opened.step("prefill", *rows)
                assert good.error is None and other.error is None, "a row fails by its neighbour's NaN"
                assert bad.error and " " in bad.error, "a row whose logits are not finite must say so in a sentence"
                assert bad.token is None and bad.logits is None, "a row with an error must have no result"
            self.compare(opened.prefill(0, [1, 2, 3]), whole.logits([1, 2, 3]), "a row after another one failed")

    def test_measuring_times_what_is_scheduled(self) -> None:
        """``measure`` runs the step, and names graphs and nodes of the program."""
        with self.open() as opened:
            opened.prefill(0, IDS[:4])
            want = "token" if "token" in opened.executor.capabilities().heads else "logits"
            timings = opened.executor.measure(Step(mode="decode", rows=(opened.row(0, IDS[4:5], 4, want=want),)))
            module = opened.tiny.program.modules["decode"]
            known = {(graph.name, value.name) for graph in module.graphs for op in graph.ops for value in op.results}
            named = {(time.graph, node) for time in timings for node in time.node.split("+")}
            strange = sorted(named - known)
            assert timings and not strange, f"measure() names what the program does not have: {strange}"
            assert all(time.seconds >= 0 and time.calls > 0 for time in timings)
            expected = opened.tiny.logits(IDS[:6])[5]
            self.compare(opened.decode(0, IDS[5], 5), expected, "the step after a measured one")

    def test_unfuse_is_obeyed_or_refused(self) -> None:
        """A named node runs by its meaning, or the executor says that it cannot; an unknown name is refused."""
        tiny = self.tiny()
        graph = next(graph for graph in tiny.program.modules["prefill"].graphs if graph.name == "decoder_layer")
        node = next(op.results[0].name for op in graph.ops if tiny.ops[op.name].decompose is not None)
        try:
            with self.open(tiny, unfuse=(node,)) as opened:
                self.compare(opened.prefill(0, IDS), tiny.logits(IDS), f"with {node} unfused")
        except UsageError as refusal:
            assert " " in str(refusal)
        what = "unfuse of a node that the program does not have"
        self.must_raise(CacheIRError, what, partial(self._open_and_close, tiny, unfuse=("no_such_node",)))

    def test_kv_formats(self) -> None:
        """Every storage format that is promised works, and no other is taken."""
        tiny = self.tiny()
        with self.open(tiny) as opened:
            formats = opened.executor.capabilities().kv_formats
            expected = np.concatenate([opened.prefill(0, IDS[:9]), opened.prefill(0, IDS[9:], 9)])
        for kv_dtype in formats:
            with self.open(tiny, kv_dtype=kv_dtype) as opened:
                first, rest = opened.prefill(0, IDS[:9]), opened.prefill(0, IDS[9:], 9)
                apart = np.abs(np.concatenate([first, rest]) - expected).max() / np.abs(expected).max()
                bound = KV_BOUNDS.get(kv_dtype, _COARSEST)
                assert apart <= max(bound, self.tolerance), (
                    f"KV in {kv_dtype} moves logits by {apart:.1e} of the largest"
                )
        what = "a KV format that the backend does not state"
        self.must_raise(CacheIRError, what, partial(self._open_and_close, tiny, kv_dtype="f13"))

    def _open_and_close(self, tiny: TinyProgram, **options: Any) -> None:
        with self.open(tiny, **options):
            pass
