"""Checks of what a backend computes: every way to feed tokens gives the numbers that the graph means."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.reference.sampling import NO_TOKEN, allowed_tokens, sample_row
from cacheir.runtime.executor import WANTS, RowOutput
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.backend_bench import F32, BackendBench
from cacheir.testing.opened_backend import OpenedBackend

IDS = (5, 17, 3, 96, 40, 41, 2, 2, 77, 60, 11, 0, 9, 30, 31, 8, 19, 54, 23, 90)
OTHER = (88, 1, 1, 50, 13, 6, 71, 44, 95)


class BackendNumbers(BackendBench):
    """The part of ``BackendTests`` that compares numbers."""

    def test_prefill(self, decoder: str) -> None:
        """A prompt fed at once: the logits of every position."""
        with self.open(decoder) as opened:
            self.compare(opened.prefill(0, IDS), opened.tiny.logits(IDS), "prefill of a prompt")

    def test_paged_decode(self, decoder: str) -> None:
        """A prompt, then token by token, over pages that lie anywhere."""
        with self.open(decoder) as opened:
            expected = opened.tiny.logits(IDS)
            opened.step("prefill", opened.row(1, IDS[:7], want="nothing"))
            for position in range(7, len(IDS)):
                self.compare(opened.decode(1, IDS[position], position), expected[position], f"decode at {position}")

    def test_ragged_mixed_steps(self, decoder: str) -> None:
        """Prompts, a chunk, and a row that decodes, all in one step; then all of them decode."""
        with self.open(decoder) as opened:
            one, other = opened.tiny.logits(IDS), opened.tiny.logits(OTHER)
            opened.step("prefill", opened.row(2, IDS[:6], want="nothing"), opened.row(0, OTHER[:3], want="nothing"))
            made = opened.step(
                "prefill",
                opened.row(0, OTHER[3:4], 3, want="logits"),
                opened.row(1, OTHER[:8], want="logits", want_at=(0, 4, 7)),
                opened.row(2, IDS[6:13], 6, want="logits", want_at=(1, 6)),
                opened.row(3, IDS[:2], want="nothing"),
            )
            where = "a step of prompts, a chunk and a decoding row"
            for output, expected in zip(made, (other[3:4], other[[0, 4, 7]], one[[7, 12]])):
                self.compare(opened.logits_of(output, len(expected)), expected, where)
            made = opened.step(
                "decode",
                opened.row(3, IDS[2:3], 2, want="logits"),
                opened.row(1, OTHER[8:9], 8, want="logits"),
                opened.row(2, IDS[13:14], 13, want="logits"),
            )
            for output, expected in zip(made, (one[2:3], other[8:9], one[13:14])):
                self.compare(opened.logits_of(output, 1), expected, "decode steps of several rows")

    def test_chunks_change_nothing(self, decoder: str) -> None:
        """A prompt may be cut anywhere."""
        with self.open(decoder) as opened:
            whole = opened.prefill(0, IDS[:12])
            for cuts in ((1,), (3, 4), (5, 9, 11), tuple(range(1, 12))):
                edges = [0, *cuts, 12]
                parts = [opened.prefill(1, IDS[start:stop], start) for start, stop in zip(edges, edges[1:])]
                self.same(opened, np.concatenate(parts), whole, f"cutting a prompt at {list(cuts)}")

    def test_neighbours_change_nothing(self, decoder: str) -> None:
        """What a row gets does not depend on what runs beside it, nor on where in the step it stands."""
        with self.open(decoder) as opened:
            alone = opened.prefill(0, IDS[:9])[-1:]
            wanted = opened.row(0, IDS[:9], want="logits")
            beside = [opened.row(1, OTHER[:4]), opened.row(2, OTHER[:1]), opened.row(3, IDS[4:9])]
            for rows in ([*beside, wanted], [wanted, *beside], [beside[1], wanted]):
                made = opened.step("prefill", *rows)[rows.index(wanted)]
                self.same(opened, opened.logits_of(made, 1), alone, "neighbours in the step")

    def test_forks(self, decoder: str) -> None:
        """A second sequence on the pages of the first: shared where full, copied where it goes on."""
        with self.open(decoder) as opened:
            full = 9 // opened.page_tokens
            opened.prefill(0, IDS[:9])
            own, twin = opened.pages_of(0), (*opened.pages_of(0)[:full], *opened.pages_of(4)[full:])
            if full * opened.page_tokens < 9:
                for group in range(len(opened.tiny.program.groups)):
                    opened.executor.copy_pages(group, [(own[full], twin[full])])
            branches = {0: [*IDS[:9], 7, 8, 9, 10], 4: [*IDS[:9], 60, 61, 62, 63]}
            for position in range(9, 13):
                rows = [
                    opened.row(slot, [ids[position]], position, pages=own if slot == 0 else twin, want="logits")
                    for slot, ids in branches.items()
                ]
                for output, ids in zip(opened.step("decode", *rows), branches.values()):
                    expected = opened.tiny.logits(ids[:13])[position]
                    self.compare(opened.logits_of(output, 1), expected, f"a forked sequence at position {position}")

    def test_pages_keep_nothing_of_before(self, decoder: str) -> None:
        """Pages come back with what another sequence left in them; no number of it may be seen."""
        with self.open(decoder) as opened:
            clean = opened.prefill(0, IDS[:10])
            for value in (1e4, np.nan):
                opened.fill_pages(value)
                first = opened.prefill(1, IDS[:7])
                rest = [opened.decode(1, IDS[position], position) for position in range(7, 10)]
                self.same(opened, np.concatenate([first, *rest]), clean, f"pages full of {value}")

    def test_heads_agree(self, decoder: str) -> None:
        """Token, logits, logprobs and hidden rows of one position belong together."""
        with self.open(decoder) as opened:
            heads = opened.executor.capabilities().heads
            made = {want: self._wanted(opened, want) for want in heads if want != "nothing"}
            logits = opened.prefill(0, IDS[:8])[-1]
            if "token" in made:
                assert made["token"].token == int(logits.argmax()), "a greedy token must be the largest logit's id"
            if "logprobs" in made:
                exact = logits.astype(np.float64) - logits.max()
                exact -= np.log(np.exp(exact).sum())
                apart = np.abs(np.asarray(made["logprobs"].logprobs)[0] - exact).max()
                assert apart < 1e-3, f"logprobs are {apart:.1e} from the log softmax of the logits"
            if "hidden" in made:
                hidden = np.asarray(made["hidden"].hidden, np.float32)
                self.compare(opened.tiny.head(hidden), logits[None], "the head's logits of the hidden rows")

    def test_a_step_may_want_different_things(self) -> None:
        """Rows of one step go through different heads."""
        with self.open() as opened:
            heads = opened.executor.capabilities().heads[: opened.tiny.program.max_rows]
            made = opened.step("prefill", *(opened.row(slot, IDS[:5], want=want) for slot, want in enumerate(heads)))
            for want, output in zip(heads, made):
                assert output.error is None, f"a row that wants {want} ends in an error: {output.error}"
                given = [name for name in WANTS[1:] if getattr(output, name) is not None]
                assert given == [want][: want != "nothing"], f"a row that wants {want} gets {given}"

    def test_tokens_are_sampled_as_core_defines(self) -> None:
        """The same numbers are drawn everywhere: by seed, position and draw."""
        with self.open() as opened:
            if "token" not in opened.executor.capabilities().heads:
                pytest.skip("the backend samples nothing")
            logits, rng = opened.prefill(0, IDS[:5])[-1], np.random.default_rng(0)
            for draw in range(24):
                params = SamplingParams(
                    temperature=float(rng.uniform(0.3, 3)),
                    top_k=int(rng.integers(0, 60)),
                    top_p=float(rng.uniform(0.3, 1)),
                    min_p=float(rng.uniform(0, 0.05)),
                    seed=int(rng.integers(0, 2**63)),
                )
                (made,) = opened.step("prefill", opened.row(0, IDS[:5], sampling=params, draw=draw))
                expected = _sampled(logits, params, position=4, draw=draw)
                assert made.token == expected, f"{params} at draw {draw} gives {made.token}, defined is {expected}"

    def test_masks(self) -> None:
        """A masked row takes an allowed token, greedy or sampled."""
        with self.open() as opened:
            if not opened.executor.capabilities().masks:
                pytest.skip("the backend takes no masks")
            logits, rng = opened.prefill(0, IDS[:5])[-1], np.random.default_rng(1)
            words = -(-len(logits) // 32)
            for draw in range(8):
                mask = rng.integers(0, 2**32, words, dtype=np.uint32)
                params = SamplingParams() if draw % 2 else SamplingParams(temperature=1.5, seed=draw)
                (made,) = opened.step("prefill", opened.row(0, IDS[:5], sampling=params, draw=draw, mask=mask))
                expected = _sampled(logits, params, position=4, draw=draw, mask=mask)
                assert made.token == expected, f"a masked row gives {made.token}, defined is {expected}"

    def test_a_slot_goes_on_from_its_last_token(self) -> None:
        """A row without ids feeds what its slot sampled last, and a slot that sampled nothing refuses."""
        with self.open() as opened:
            if "token" not in opened.executor.capabilities().heads:
                pytest.skip("the backend samples nothing, so no slot has a last token")
            (first,) = opened.step("prefill", opened.row(0, IDS[:5]))
            (made,) = opened.step("decode", opened.row(0, [], 5, draw=1))
            given = opened.decode(1, int(first.token or 0), 5, pages=opened.pages_of(0))
            assert made.token == int(given.argmax()), "a row without ids must feed its slot's last token"
            self.refused(opened, "decode", [opened.row(3, [], 0)], "a slot without a last token")

    def test_threads_change_nothing(self, decoder: str) -> None:
        """Two threads give what one gives."""
        with self.open(decoder, threads=1) as one, self.open(decoder, threads=2) as two:
            self.same(one, two.prefill(0, IDS), one.prefill(0, IDS), "a second thread")

    def _wanted(self, opened: OpenedBackend, want: str) -> RowOutput:
        (made,) = opened.step("prefill", opened.row(0, IDS[:8], want=want))
        assert made.error is None, f"a row that wants {want} ends in an error: {made.error}"
        return made


def _sampled(
    logits: F32, params: SamplingParams, *, position: int, draw: int, mask: NDArray[np.uint32] | None = None
) -> int:
    """The token that core's definition of sampling gives."""
    token = sample_row(
        logits,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed or 0,
        position=position,
        draw=draw,
        allowed=None if mask is None else allowed_tokens(mask, len(logits)),
    )
    assert token != NO_TOKEN
    return token
