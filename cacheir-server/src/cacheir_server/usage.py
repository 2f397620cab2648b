"""The ``usage`` of an answer: each prompt counted once, whatever the number of its choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cacheir.runtime.engine.job import Usage


def usage_of(usages: Sequence[Usage], choices: int) -> dict[str, Any]:
    """OpenAI's usage for the answers of one request, ``choices`` of them to each prompt, in order."""
    firsts = usages[::choices]
    prompt = sum(usage.prompt_tokens for usage in firsts)
    completion = sum(usage.sampled_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in firsts)},
    }
