"""What one answer cost: tokens, times, and what its keys and values take, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cacheir.ir.types import KVType
from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """One layer's part of a sequence's cache; ``nbytes`` counts whole pages, ``shared_pages`` those it shares."""

    group: int
    tokens: int
    pages: int
    shared_pages: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """The cache of one sequence. ``page_size`` is in tokens, ``layers`` maps the model's layer numbers."""

    page_size: int
    layers: Mapping[int, LayerCache]

    def to_json(self) -> dict[str, Any]:
        """``{"page_size": 16, "layers": {"0": {...}}}``."""
        return {
            "page_size": self.page_size,
            "layers": {str(number): asdict(layer) for number, layer in sorted(self.layers.items())},
        }


@dataclass(frozen=True, kw_only=True)
class GenerationStats:
    """One answer. Times are milliseconds of wall clock.

    ``prompt_tokens`` are all tokens before the answer, of which ``cached_tokens`` had keys and values already.
    ``sampled_tokens`` counts every token that was picked, the ending one included; the first comes out of the prefill,
    each further one out of a decode step; ``decode_ms`` has the time since the one before it came, which is next to
    nothing where an executor that runs ahead hands over several at once. ``discarded_tokens`` were computed ahead after
    the answer had ended. ``ttft_ms`` runs from the call to the first token and contains ``prefill_ms``.
    """

    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    discarded_tokens: int
    prefill_ms: float
    decode_ms: tuple[float, ...]
    ttft_ms: float
    total_ms: float
    prefill_chunks: int
    finish_reason: str
    seed: int
    run_ahead_refused: str
    kv_cache: CacheStats

    @property
    def decode_tokens(self) -> int:
        """Decode steps that were timed: all sampled tokens but the first."""
        return len(self.decode_ms)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed by the second; 0 where none was."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_ms)

    @property
    def decode_tokens_per_s(self) -> float:
        """Decode steps by the second; 0 where there was none."""
        return _rate(self.decode_tokens, sum(self.decode_ms))

    def to_json(self) -> dict[str, Any]:
        """Every field, and the rates."""
        return {
            **asdict(self),
            "decode_ms": list(self.decode_ms),
            "decode_tokens": self.decode_tokens,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "kv_cache": self.kv_cache.to_json(),
        }


def cache_stats(
    groups: Sequence[KVType],
    group_layers: Sequence[Sequence[int]],
    pages: Sequence[int],
    shared_pages: Sequence[int],
    tokens: int,
    page_tokens: int,
) -> CacheStats:
    """The cache of a sequence that holds ``tokens`` positions in ``pages`` of each group."""
    layers: dict[int, LayerCache] = {}
    for number, (kind, members) in enumerate(zip(groups, group_layers, strict=True)):
        # One record for all layers of a group, which have the same: this is between a prompt and its first token.
        each = LayerCache(
            group=number,
            tokens=tokens,
            pages=pages[number],
            shared_pages=shared_pages[number],
            nbytes=pages[number] * page_tokens * kind.token_bytes,
        )
        layers.update(dict.fromkeys(members, each))
    return CacheStats(page_size=page_tokens, layers=layers)


def _rate(count: int, milliseconds: float) -> float:
    return 1000.0 * count / milliseconds if count and milliseconds else 0.0
