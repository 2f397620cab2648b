"""``BackendTests``: a good backend passes every check, and each check catches its own culprit.

The good backend is the one that ``cacheir plugins new backend`` writes; a bad one differs from it in one method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from cacheir.errors import RequestError
from cacheir.runtime.executor import StepOutput
from cacheir.testing import BackendTests
from cacheir.testing.backend_ahead import BackendAhead


def derived(base: Any, **methods: Any) -> Any:
    """``base`` with other methods."""
    return type("Executor", (base,), methods)


def itself(base: Any) -> Any:
    return base


def test_a_good_backend_passes(check: Any) -> None:
    assert check(itself) == {}


def test_a_good_backend_that_states_bit_is_held_to_it(check: Any) -> None:
    """NumPy's products depend on the number of rows, so the claim is wrong, and seen wherever rows are company."""

    def claims_bit(base: Any) -> Any:
        return derived(base, capabilities=lambda self: replace(base.capabilities(self), determinism="bit"))

    found = check(claims_bit, only="test_chunks_change_nothing")
    assert "changes bits" in found["test_chunks_change_nothing"]


def forgets_the_window_of_a_page(base: Any) -> Any:
    """Prefill is right, and a step that decodes reads one key too few."""

    class Executor(base):  # type: ignore[misc]
        def _inputs(self, rows: Any, tokens: Any) -> Any:
            made = super()._inputs(rows, tokens)
            if len(rows) == 1 and len(tokens[0]) == 1 and rows[0].position == 12 and rows[0].want == "logits":
                made["lengths"] = made["lengths"] - 1
            return made

    return Executor


def rounds_prompts(base: Any) -> Any:
    """The largest steps alone are wrong: prompts of all ids."""

    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            if step.mode == "prefill" and len(step.rows) == 1 and len(step.rows[0].tokens) == 20:
                return _changed(made, lambda logits: logits * np.float32(1.01))
            return made

    return Executor


def mixes_up_a_mixed_step(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            lengths = [len(row.tokens) for row in step.rows]
            if 1 in lengths and max(lengths) == 8:
                return _changed(made, lambda logits: logits[::-1])
            return made

    return Executor


def loses_a_chunk(base: Any) -> Any:
    """A chunk after exactly three tokens is placed one too early."""

    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            if len(step.rows) == 1 and step.rows[0].position == 5 and len(step.rows[0].tokens) == 4:
                return _changed(made, lambda logits: logits + np.float32(0.5))
            return made

    return Executor


def leans_on_neighbours(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            if len(step.rows) == 4 and step.rows[-1].want == "logits" and len(step.rows[-1].tokens) == 9:
                return _changed(made, lambda logits: logits * np.float32(1.1))
            return made

    return Executor


def copies_nothing(base: Any) -> Any:
    """Copies pages of the first group alone, as a backend for one group would."""

    class Executor(base):  # type: ignore[misc]
        def copy_pages(self, group: Any, pairs: Any) -> None:
            if group == 0 or len(pairs) != 1 or pairs[0][0] == 3:
                super().copy_pages(group, pairs)

    return Executor


def sees_old_keys(base: Any) -> Any:
    """Adds what lies on a page that is not used, times zero: nothing, until that is no number."""

    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            rest = np.float32(0) * self.pools[0].storage[0, -1].sum()
            return _changed(made, lambda logits: logits + rest)

    return Executor


def argmax_of_the_first(base: Any) -> Any:
    """A greedy token is the best but one where the row has eight tokens."""

    class Executor(base):  # type: ignore[misc]
        def _output(self, module: Any, row: Any, ids: Any, hidden: Any) -> Any:
            made = super()._output(module, row, ids, hidden)
            return replace(made, token=made.token ^ 1) if made.token is not None and len(ids) == 8 else made

    return Executor


def raw_logprobs(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def _output(self, module: Any, row: Any, ids: Any, hidden: Any) -> Any:
            made = super()._output(module, row, ids, hidden)
            return replace(made, logprobs=made.logprobs * 2) if made.logprobs is not None else made

    return Executor


def one_head_for_all(base: Any) -> Any:
    """Gives logits besides, where a token was wanted among other things."""

    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            if len({row.want for row in step.rows}) < 3:
                return made
            extra = np.zeros((1, 97), np.float32)
            rows = (replace(row, logits=extra) if row.token is not None else row for row in made.rows)
            return StepOutput(rows=tuple(rows))

    return Executor


def draws_by_slot(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def _output(self, module: Any, row: Any, ids: Any, hidden: Any) -> Any:
            if row.want == "token" and row.mask is None and row.sampling is not None and row.sampling.top_k:
                row = replace(row, draw=0)
            return super()._output(module, row, ids, hidden)

    return Executor


def ignores_masks(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def _output(self, module: Any, row: Any, ids: Any, hidden: Any) -> Any:
            return super()._output(module, replace(row, mask=None), ids, hidden)

    return Executor


def begins_at_zero(base: Any) -> Any:
    """A slot that sampled nothing feeds id 0."""
    return derived(base, _tokens=lambda self, row: row.tokens or (self.last_tokens.get(row.slot, 0),))


def reads_pages_in_order(base: Any) -> Any:
    return derived(base, read_pages=lambda self, group, pages: base.read_pages(self, group, sorted(pages)))


def counts_no_pages(base: Any) -> Any:
    return derived(base, memory=lambda self: replace(base.memory(self), kv=1 << 20))


def takes_any_length(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def _check(self, step: Any, tokens: Any) -> None:
            try:
                super()._check(step, tokens)
            except RequestError as error:
                if "rows and" not in str(error):
                    raise

    return Executor


def lives_on(base: Any) -> Any:
    """Answers after it was closed."""
    return derived(base, close=lambda self: self.last_tokens.clear())


def fails_together(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            error = next((row.error for row in made.rows if row.error), None)
            return made if error is None else StepOutput(rows=tuple(replace(row, error=error) for row in made.rows))

    return Executor


def times_what_is_not_there(base: Any) -> Any:
    return derived(
        base, measure=lambda self, step: [replace(time, node="kernel_7") for time in base.measure(self, step)]
    )


def ignores_unfuse(base: Any) -> Any:
    return derived(base, __init__=lambda self, options: base.__init__(self, replace(options, unfuse=())))


def ignores_kv_dtype(base: Any) -> Any:
    return derived(base, __init__=lambda self, options: base.__init__(self, replace(options, kv_dtype="")))


def promises_f16(base: Any) -> Any:
    return derived(base, capabilities=lambda self: replace(base.capabilities(self), kv_formats=("f32", "f16")))


def threads_matter(base: Any) -> Any:
    class Executor(base):  # type: ignore[misc]
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            self.threads = options.threads

        def submit(self, step: Any) -> Any:
            made = super().submit(step)
            return _changed(made, lambda logits: logits * np.float32(1.1)) if self.threads == 2 else made

    return Executor


def promises_more_rows(base: Any) -> Any:
    return derived(base, capabilities=lambda self: replace(base.capabilities(self), max_rows=64))


def wears_out(base: Any) -> Any:
    """Wrong after so many steps as only the engine takes on one executor."""

    class Executor(base):  # type: ignore[misc]
        taken = 0

        def submit(self, step: Any) -> Any:
            self.taken += 1
            made = super().submit(step)
            return _changed(made, lambda logits: np.roll(logits, 1)) if self.taken > 40 else made

    return Executor


CULPRITS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "test_capabilities": (promises_more_rows,),
    "test_prefill": (rounds_prompts,),
    "test_paged_decode": (forgets_the_window_of_a_page,),
    "test_ragged_mixed_steps": (mixes_up_a_mixed_step,),
    "test_chunks_change_nothing": (loses_a_chunk,),
    "test_neighbours_change_nothing": (leans_on_neighbours,),
    "test_forks": (copies_nothing,),
    "test_pages_keep_nothing_of_before": (sees_old_keys,),
    "test_heads_agree": (argmax_of_the_first, raw_logprobs),
    "test_a_step_may_want_different_things": (one_head_for_all,),
    "test_tokens_are_sampled_as_core_defines": (draws_by_slot,),
    "test_masks": (ignores_masks,),
    "test_a_slot_goes_on_from_its_last_token": (begins_at_zero,),
    "test_pages_are_read_as_written": (reads_pages_in_order,),
    "test_memory_is_accounted_for": (counts_no_pages,),
    "test_wrong_steps_are_refused_and_change_nothing": (takes_any_length,),
    "test_the_order_of_calls_is_checked": (lives_on,),
    "test_a_row_that_is_not_finite_fails_alone": (fails_together,),
    "test_measuring_times_what_is_scheduled": (times_what_is_not_there,),
    "test_unfuse_is_obeyed_or_refused": (ignores_unfuse,),
    "test_kv_formats": (ignores_kv_dtype, promises_f16),
    "test_threads_change_nothing": (threads_matter,),
    "test_the_engine_changes_nothing": (wears_out,),
}


PAIRS = [pytest.param(name, make, id=make.__name__) for name, makes in CULPRITS.items() for make in makes]


@pytest.mark.parametrize(("failing", "make"), PAIRS)
def test_each_check_catches_its_culprit(check: Any, failing: str, make: Callable[[Any], Any]) -> None:
    assert set(check(make, only=failing)) == {failing}


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "make"), PAIRS)
def test_no_other_check_complains(check: Any, failing: str, make: Callable[[Any], Any]) -> None:
    """But for the engine's: its random traces may come upon the one step that a culprit gets wrong."""
    assert set(check(make)) - {"test_the_engine_changes_nothing"} == {failing} - {"test_the_engine_changes_nothing"}


def test_every_check_has_a_culprit() -> None:
    """Those of running ahead are in ``test_backend_ahead.py``."""
    others = set(dir(BackendTests)) - {name for name in vars(BackendAhead) if name.startswith("test_")}
    assert {name for name in others if name.startswith("test_")} == set(CULPRITS)


def test_a_backend_that_cannot_work_here_is_skipped(plugin_of: Any) -> None:
    from cacheir.plugins import BackendSpec

    reason = "there is no device"
    none = BackendSpec(name="none", summary="", targets=("none",), executor="a.b:c", probe=lambda: reason)

    class Checks(BackendTests):
        plugin: ClassVar[str] = plugin_of(cacheir_register_backends=[none])
        backend = "none"

    with pytest.raises(pytest.skip.Exception, match=reason):
        Checks._needs_the_backend.__wrapped__(Checks())  # type: ignore[attr-defined]


def _changed(made: Any, change: Callable[[Any], Any]) -> StepOutput:
    rows = (row if row.logits is None else replace(row, logits=change(row.logits)) for row in made.rows)
    return StepOutput(rows=tuple(rows))
