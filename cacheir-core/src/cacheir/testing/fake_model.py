"""A deterministic model whose pages hold the token ids themselves, for tests of what runs above an executor.

The next token is a function of what is read back through the page table: a wrong page, a missed copy or a stale
position changes the output.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cacheir.errors import UsageError
from cacheir.ir.types import KVType
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import GenerationDefaults
from cacheir.reference.sampling import allowed_tokens, sample_row
from cacheir.runtime.executor import CallTiming, Capabilities, MemoryUse, Row, RowOutput, Sink, Step, StepOutput
from cacheir.runtime.open_model import OpenModel, open_model
from cacheir.runtime.row_ends import ends_with
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.sequence import Sequence as TokenSequence
from cacheir.runtime.session import Session
from cacheir.runtime.slots import Slots
from cacheir.schedule.program import Program

SPECIAL = {256: "<s>", 257: "</s>", 258: "<|im_start|>", 259: "<|im_end|>"}
VOCAB = 260
BOS, EOS, IM_START, IM_END = SPECIAL
NEVER_WRITTEN = -1
# What stands for a token that a window hides from a later one.
HIDDEN = -2
GROUPS = (
    KVType(layers=2, heads=1, head_dim=8, dtype="f32"),
    KVType(layers=1, heads=1, head_dim=8, dtype="f16", window=16),
)


class ByteTokenizer:
    """One id for each byte, and four control tokens."""

    vocab_size = VOCAB
    special_ids = frozenset(SPECIAL)

    def __init__(self, *, strips_leading_space: bool = False) -> None:
        self.strips_leading_space = strips_leading_space

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if not special:
            return list(text.encode())
        ids: list[int] = []
        names = {name: token for token, name in SPECIAL.items()}
        for part in re.split("(" + "|".join(map(re.escape, names)) + ")", text):
            ids += [names[part]] if part in names else list(part.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        pieces = [b"" if skip_special and i in SPECIAL else SPECIAL.get(i, "").encode() or bytes([i]) for i in ids]
        text = b"".join(pieces).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if 0 <= token < 256 else b""

    def token_id(self, text: str) -> int | None:
        return next((token for token, name in SPECIAL.items() if name == text), None)


class FakeExecutor:
    """``script`` gives the logits after a history; without one they are noise that is a function of it.

    ``fault(step, row)`` may return an error for a row, or raise. Every step taken is in ``steps``. With ``knows_ends``
    a row that ended is in no further step of a ``run_ahead``, which reports it as stopped. Where every one of ``kinds``
    has a window, the history is what the first of them leaves of it.
    """

    def __init__(
        self,
        *,
        page_tokens: int = 4,
        groups: int = 2,
        vocab: int = VOCAB,
        script: Callable[[list[int]], int] | None = None,
        heads: tuple[str, ...] = ("nothing", "token", "logits", "hidden"),
        run_ahead: bool = True,
        masks: bool = True,
        max_tokens: int = 64,
        kinds: tuple[KVType, ...] = (),
        knows_ends: bool = False,
    ) -> None:
        self.page_tokens = page_tokens
        self.kinds = kinds or GROUPS[:groups]
        self.vocab = vocab
        self.script = script
        self.knows_ends = knows_ends
        self.steps: list[Step] = []
        self.ahead_calls: list[int] = []
        self.fault: Callable[[Step, Row], str | None] = lambda step, row: None
        self.closed = False
        self._capabilities = Capabilities(
            determinism="bit",
            heads=heads,
            page_tokens=(),
            kv_formats=("f32",),
            row_classes=(1,),
            max_rows=4,
            max_tokens=max_tokens,
            run_ahead=run_ahead,
            masks=masks,
        )

    def load(self, program: Any, weights: Any) -> None:
        """Nothing to load."""

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open_pools(self, pages: Sequence[int]) -> None:
        self.pools = [np.full((count, self.page_tokens), NEVER_WRITTEN, np.int64) for count in pages]

    def submit(self, step: Step) -> StepOutput:
        self.steps.append(step)
        written: set[tuple[int, int]] = set()
        for row in step.rows:
            assert row.tokens and (step.mode == "prefill" or len(row.tokens) == 1)
            mine = self._write(row)
            assert not written & mine, "two rows of one step write one page"
            written |= mine
        return StepOutput(rows=tuple(self._output(step, row) for row in step.rows))

    def wait(self, ticket: Any) -> StepOutput:
        assert isinstance(ticket, StepOutput)
        return ticket

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int:
        if not self._capabilities.run_ahead:
            raise UsageError("this executor does not run ahead")
        if any(row.mask is not None for row in step.rows):
            raise UsageError("a mask needs the host")
        if any(row.want != "token" for row in step.rows):
            raise UsageError("what is wanted besides tokens needs the host")
        self.ahead_calls.append(n)
        slots, stopped = Slots(), dict[int, RowOutput]()
        for number in range(n):
            live = [row for row in step.rows if row.slot not in stopped]
            made = {one.slot: one for one in self.wait(self.submit(replace(step, rows=tuple(live)))).rows} | stopped
            rows = tuple(made[row.slot] for row in step.rows)
            if self.knows_ends:
                over = [row.slot for row in live if ends_with(row, made[row.slot].token, slots)]
                stopped |= {slot: RowOutput(slot=slot, stopped=True) for slot in over}
            if (sink(rows) and self._capabilities.stops_ahead) or any(row.error for row in rows):
                return number + 1
            if len(stopped) == len(step.rows):
                return number + 1
            following = (
                replace(row, tokens=(result.token or 0,), position=row.position + 1, draw=row.draw + 1)
                for row, result in zip(step.rows, rows)
            )
            step = replace(step, rows=tuple(following))
        return n

    def copy_pages(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.pools[group][target] = self.pools[group][source]

    def read_pages(self, group: int, pages: Sequence[int]) -> np.ndarray:
        """f32 [pages, layers, 2, 1, page_tokens, 8]: the token everywhere, and its layer's number added."""
        layers = (2, 1)[group]
        tokens = self.pools[group][list(pages)].astype(np.float32)
        wide = np.broadcast_to(tokens[:, None, None, None, :, None], (len(pages), layers, 2, 1, self.page_tokens, 8))
        return wide + np.arange(layers, dtype=np.float32)[None, :, None, None, None, None]

    def write_pages(self, group: int, pages: Sequence[int], data: np.ndarray) -> None:
        self.pools[group][list(pages)] = data[:, 0, 0, 0, :, 0].astype(np.int64)

    def measure(self, step: Step) -> Sequence[CallTiming]:
        """Nothing is scheduled."""
        return ()

    def memory(self) -> MemoryUse:
        return MemoryUse(weights=0, kv=sum(pool.nbytes for pool in self.pools), arena=0)

    def close(self) -> None:
        self.closed = True

    def logits(self, history: list[int]) -> np.ndarray:
        """f32 [V], a function of the history alone, or of what the windows leave of it."""
        if all(kind.window for kind in self.kinds):
            seen = set(self._seen(self.kinds[0], len(history) - 1, len(history)))
            history = [token if place in seen else HIDDEN for place, token in enumerate(history)]
        if self.script is not None:
            logits = np.zeros(self.vocab, np.float32)
            logits[self.script(history)] = 9.0
            return logits
        seed = hashlib.sha256(np.asarray(history, np.int64).tobytes()).digest()[:8]
        noise = np.random.default_rng(int.from_bytes(seed, "little")).normal(size=self.vocab)
        return noise.astype(np.float32)

    def _write(self, row: Row) -> set[tuple[int, int]]:
        written = set()
        for group, table in enumerate(row.pages):
            for position, token in enumerate(row.tokens, row.position):
                page = table[position // self.page_tokens]
                self.pools[group][page, position % self.page_tokens] = token
                written.add((group, page))
        return written

    def _history(self, row: Row) -> list[int]:
        length = row.position + len(row.tokens)
        history = [HIDDEN] * length
        for pool, table, kind in zip(self.pools, row.pages, self.kinds):
            for position in self._seen(kind, row.position, length):
                page = table[position // self.page_tokens]
                assert page >= 0, "a page is missing that a token sees"
                token = int(pool[page, position % self.page_tokens])
                assert history[position] in (HIDDEN, token), "the groups hold different tokens"
                history[position] = token
        assert NEVER_WRITTEN not in history, "a position is read that was never written"
        return history

    def _seen(self, kind: KVType, start: int, stop: int) -> list[int]:
        """The positions below ``stop`` that a token at ``start`` or later sees."""
        first = max(0, start - kind.window + 1) if kind.window else 0
        return [*range(min(kind.sinks, first)), *range(first, stop)]

    def _output(self, step: Step, row: Row) -> RowOutput:
        error = self.fault(step, row)
        if error is not None:
            return RowOutput(slot=row.slot, error=error)
        if row.want == "nothing":
            return RowOutput(slot=row.slot)
        assert row.want in self._capabilities.heads
        history = self._history(row)
        logits = self.logits(history)
        if row.want == "logits":
            places = row.want_at or (len(row.tokens) - 1,)
            stacked = np.stack([self.logits(history[: row.position + place + 1]) for place in places])
            return RowOutput(slot=row.slot, logits=stacked)
        if row.want == "hidden":
            return RowOutput(slot=row.slot, hidden=np.asarray([history[-1:] * 8], np.float32))
        sampling = row.sampling
        assert sampling is not None and sampling.seed is not None and (row.mask is None or self._capabilities.masks)
        token = sample_row(
            logits,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            position=row.position + len(row.tokens) - 1,
            draw=row.draw,
            allowed=None if row.mask is None else allowed_tokens(row.mask, len(logits)),
        )
        return RowOutput(slot=row.slot, token=token)


class OverlappingExecutor(FakeExecutor):
    """A fake whose ``submit`` returns at once: the step is computed when it is waited for, as late as can be.

    So whatever the host does to its pages meanwhile shows in the output. ``calls`` are ``submit`` and ``wait`` as they
    came; a test may add its own.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self._capabilities = replace(self._capabilities, overlaps=True)

    def submit(self, step: Step) -> Any:
        self.calls.append("submit")
        return [step]

    def wait(self, ticket: Any) -> StepOutput:
        self.calls.append("wait")
        return super().submit(ticket.pop())


def program(executor: FakeExecutor, *, max_seq: int = 128, **defaults: Any) -> Program:
    """A program without graphs, which is all that the runtime looks at."""
    return Program(
        modules={},
        schedules={},
        plans={},
        weights={},
        sources={},
        groups=executor.kinds,
        group_layers=((0, 2), (1,))[: len(executor.kinds)],
        target="fake",
        backend="fake",
        max_seq=max_seq,
        max_rows=4,
        max_tokens=64,
        spec=DecoderSpec(
            family="fake",
            label="Fake",
            vocab_size=executor.vocab,
            hidden=8,
            max_positions=max_seq,
            norm_eps=1e-5,
            layers=(),
            tied_head=True,
        ),
        generation=GenerationDefaults(**{"eos_ids": (EOS,), **defaults}),
    )


def open_fake(
    executor: FakeExecutor | None = None,
    tokenizer: ByteTokenizer | None = None,
    *,
    max_seq: int = 128,
    kv_tokens: int = 0,
    chunk_tokens: int = 512,
    on_done: Callable[[Any], None] = lambda stats: None,
    make_sampler: Callable[[SamplingParams], Any] = lambda params: None,
    **defaults: Any,
) -> OpenModel:
    """An open model over the fake; ``defaults`` are fields of ``GenerationDefaults``."""
    executor = executor or FakeExecutor()
    return open_model(
        program(executor, max_seq=max_seq, **defaults),
        executor,
        tokenizer or ByteTokenizer(),
        page_tokens=executor.page_tokens,
        kv_tokens=kv_tokens,
        chunk_tokens=chunk_tokens,
        on_done=on_done,
        make_sampler=make_sampler,
    )


def session(model: OpenModel, ids: Sequence[int] = ()) -> Session:
    """A session with ``ids``."""
    opened = Session(model, TokenSequence(tables=model.runner.kv.empty()))
    if ids:
        opened.append(ids)
    return opened


def tokens(opened: Session, count: int, **sampling: Any) -> list[int]:
    """The next ``count`` tokens, the model's ending ids among them as ordinary ones."""
    params = SamplingParams(max_tokens=count, ignore_eos=True, **sampling)
    return [token for piece in opened.generate(params) for token in piece.ids]


def expected(executor: FakeExecutor, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens by the definition: no pages, no chunks, no steps ahead."""
    history = list(prompt)
    for _ in range(count):
        history.append(int(executor.logits(history).argmax()))
    return history[len(prompt) :]


def assert_nothing_leaks(model: OpenModel) -> None:
    """Every page is free."""
    for pool in model.runner.kv.pools:
        assert pool.free == pool.size
        assert all(pool.holders(page) == 0 for page in range(pool.size))
