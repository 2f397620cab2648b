"""The cache-equivalence audit: keys and values that were taken over are computed once more and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.errors import CacheIRError
from cacheir.ir.types import KVType
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.plan_step import EnginePlan
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.executor import Capabilities, Executor, Row, Step
from cacheir.runtime.kv_space import Tables
from cacheir.runtime.pages import FREED, pages_for

# Of the largest value of a layer's page: one step of a bf16 page is up to 8e-3 of it and one of an fp8 page 7e-2. What
# other tokens leave in a page differs by about as much as it holds.
_NARROW_PAGES = 0.1


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """One audit. ``problem`` is "" where all is equal; else ``group``, ``page`` and ``layer`` say where it is not.

    ``page`` is the place in the job's table, ``pool_page`` its number in the pool, ``layer`` the model's layer.
    ``skipped`` says why there was nothing to compare with.
    """

    job_id: str
    tokens: int
    problem: str = ""
    group: int = -1
    page: int = -1
    pool_page: int = -1
    layer: int = -1
    skipped: str = ""


def tolerance_of(capabilities: Capabilities, kv_groups: Sequence[KVType]) -> float:
    """How far a page may be off, of the largest value of each layer; 0 where bits are promised."""
    if capabilities.determinism == "bit":
        return 0.0
    narrow = any(kind.dtype != "f32" for kind in kv_groups)
    return max(capabilities.rounding, _NARROW_PAGES) if narrow else capabilities.rounding


class Auditor:
    """Audits every ``every``-th request that took pages over, none with 0. ``findings`` are those with a difference."""

    def __init__(
        self, executor: Executor, group_layers: Sequence[Sequence[int]], *, every: int, tolerance: float
    ) -> None:
        self.findings: list[AuditFinding] = []
        self._executor, self._layers = executor, group_layers
        self._every, self._tolerance = every, tolerance
        self._reusing = 0

    def check(self, state: EngineState, plan: EnginePlan) -> None:
        """Audits those that ``plan`` admits and whose turn it is."""
        if not self._every:
            return
        for entry in plan.admitted:
            assert isinstance(entry, Entry)
            if not entry.nodes:
                continue
            self._reusing += 1
            if self._reusing % self._every:
                continue
            finding = audit_entry(self._executor, state, entry, self._layers, tolerance=self._tolerance)
            state.counters.audits["skipped" if finding.skipped else "corrupt" if finding.problem else "clean"] += 1
            if finding.problem:
                self.findings.append(finding)


def audit_entry(
    executor: Executor, state: EngineState, entry: Entry, group_layers: Sequence[Sequence[int]], *, tolerance: float
) -> AuditFinding:
    """Compares the pages that ``entry`` took over at its admission with what its own tokens give.

    The tokens are computed anew in pages of their own, which are given back. Values of a layer's page
    may differ by ``tolerance`` of its largest (``tolerance_of``).
    """
    kv, space, tokens = state.kv, state.space, len(entry.nodes) * state.kv.page_tokens
    lacking = len(entry.nodes) > space.free + space.evictable
    if lacking or any(min(len(entry.nodes), window.most) > window.pages for window in space.windows):
        return AuditFinding(job_id=entry.job.id, tokens=tokens, skipped="there are no free pages to compute them in")
    tables, chunk = kv.empty(), state.limits.chunk_tokens
    try:
        for start in range(0, tokens, chunk):
            stop = min(start + chunk, tokens)
            tables = kv.trim(tables, start)
            state.index.make_room([pages_for(stop, kv.page_tokens) - len(table) for table in tables])
            tables = kv.reserve(tables, start, stop)
            _compute(executor, entry, tables, start, stop)
        return _compared(executor, state, entry, tables, group_layers, tolerance=tolerance)
    except CacheIRError as error:
        return AuditFinding(job_id=entry.job.id, tokens=tokens, skipped=f"the tokens could not be computed: {error}")
    finally:
        kv.cut(tables, 0)


def _compute(executor: Executor, entry: Entry, tables: Tables, start: int, stop: int) -> None:
    ids = entry.sequence.ids
    row = Row(
        slot=0,
        tokens=tuple(ids[start:stop]),
        position=start,
        pages=tables,
        want="nothing",
        sampling=entry.job.sampling,
        length=len(ids),
    )
    executor.wait(executor.submit(Step(mode="prefill", rows=(row,))))


def _compared(
    executor: Executor,
    state: EngineState,
    entry: Entry,
    tables: Tables,
    group_layers: Sequence[Sequence[int]],
    *,
    tolerance: float,
) -> AuditFinding:
    import numpy as np

    tokens = len(entry.nodes) * state.kv.page_tokens
    for group, table in enumerate(tables):
        # Behind a window, only what is still seen was taken over.
        front = entry.sequence.tables[group][: len(entry.nodes)]
        pages = [page for page, pool_page in enumerate(front) if pool_page != FREED]
        theirs = executor.read_pages(group, [front[page] for page in pages])
        ours = executor.read_pages(group, [table[page] for page in pages])
        for number, page in enumerate(pages):
            for place, layer in enumerate(group_layers[group]):
                mine, found = ours[number, place], theirs[number, place]
                bound = tolerance * max(float(np.abs(mine).max()), 1e-6)
                difference = np.abs(mine - found)
                if not (difference <= bound).all():  # a NaN is a difference too
                    largest = float(np.nanmax(difference)) if np.isfinite(difference).any() else float("nan")
                    return AuditFinding(
                        job_id=entry.job.id,
                        tokens=tokens,
                        problem=f"keys or values differ by {largest:g} (allowed: {bound:g})",
                        group=group,
                        page=page,
                        pool_page=front[page],
                        layer=layer,
                    )
    return AuditFinding(job_id=entry.job.id, tokens=tokens)
