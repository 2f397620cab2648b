"""One computation that the engine has in hand: its tokens, pages and answer. Only ``apply_step`` changes one."""

from __future__ import annotations

from dataclasses import dataclass, field

from cacheir.runtime.answer import Answer
from cacheir.runtime.engine.job import Job, Listener, TokenLogprobs
from cacheir.runtime.engine.prefix_node import Node
from cacheir.runtime.host_sampling import HostSampler
from cacheir.runtime.pages import FREED, held
from cacheir.runtime.sequence import Sequence


@dataclass(eq=False)
class Entry:
    """``number`` is the order of arrival. ``nodes`` are those blocks of the prefix index that its first pages are.

    ``on_host`` says that its tokens are picked from logits on the host, or that it wants none, so that it can neither
    run ahead nor use a head that samples. A computation has a listener for each client whose request was the same;
    without any it ends.
    """

    job: Job
    number: int
    arrived: float
    sequence: Sequence
    answer: Answer
    on_host: bool
    sampler: HostSampler | None = None  # a plugin's, in place of core's rule
    listeners: list[Listener] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    windowed: tuple[int, ...] = ()  # the KV groups with a window
    priority: int = 0
    bounded: bool = False  # whether any listener has, or had, a deadline
    started: float = 0.0  # when it first ran; 0 before
    first_token: float = 0.0
    cached_tokens: int = 0  # of the prompt, at the first admission
    preemptions: int = 0
    lost: int = 0  # tokens whose keys and values the last preemption took
    running: bool = False
    enters: bool = False  # its new pages are still to become known to the prefix index
    masked: bool = False  # the next token is picked within the vocabulary's mask, since the last pick was none of it
    draft: tuple[int, ...] = ()  # what the next step may check besides
    text: str = ""  # all that was delivered, for a client that joins late
    told: int = 0  # so many ids of the answer were
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Tokens that have no keys and values yet; at least one, which the next output comes out of."""
        return len(self.sequence.ids) - self.sequence.cached

    @property
    def cached(self) -> int:
        """Tokens that have them."""
        return self.sequence.cached

    @property
    def all_logits(self) -> bool:
        """Whether the logits after every token of the prompt are wanted."""
        return self.job.prompt_logprobs is not None and self.sequence.cached < len(self.job.ids)

    @property
    def pages(self) -> int:
        """Pages of its table, the same number in every group."""
        return len(self.sequence.tables[0]) if self.sequence.tables else 0

    @property
    def releasable(self) -> int:
        """Pages of a group that are free, or evictable, once it has given its own back."""
        return self.pages - sum(node.users > 1 for node in self.nodes)

    @property
    def releasable_windows(self) -> tuple[int, ...]:
        """The same for each group with a window, and no more than that: who shares a block may have left its page."""
        shared = [place for place, node in enumerate(self.nodes) if node.users > 1] if self.windowed else []
        tables = [self.sequence.tables[group] for group in self.windowed]
        return tuple(len(held(table)) - sum(table[place] != FREED for place in shared) for table in tables)

    @property
    def remaining(self) -> int:
        """How many more tokens may be sampled."""
        return self.answer.remaining
