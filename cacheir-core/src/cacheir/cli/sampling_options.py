"""The options that say how tokens are picked and where an answer stops; the same for every command that generates."""

from __future__ import annotations

import typer

from cacheir.runtime.stats import GenerationStats

MAX_NEW_TOKENS = typer.Option(256, min=1, help="The most tokens that an answer has.")
TEMPERATURE = typer.Option(0.0, help="0 takes the likeliest token; higher is more varied.")
TOP_K = typer.Option(0, help="Pick among this many of the likeliest tokens; 0: all.")
TOP_P = typer.Option(1.0, help="Pick among the fewest tokens that have this share of the probability.")
MIN_P = typer.Option(0.0, help="Pick among the tokens that are at least this share as likely as the likeliest.")
TYPICAL_P = typer.Option(1.0, help="Pick among the most typical tokens that have this share of the probability.")
REPETITION_PENALTY = typer.Option(1.0, help="Above 1: make tokens less likely that occurred, in prompt or answer.")
PRESENCE_PENALTY = typer.Option(0.0, help="Subtracted from the logits of tokens that occur in the answer.")
FREQUENCY_PENALTY = typer.Option(0.0, help="Subtracted from a token's logit for each time it occurs in the answer.")
MIN_TOKENS = typer.Option(0, min=0, help="No ending token before so many.")
SEED = typer.Option(None, help="The same seed gives the same tokens; without one a fresh one is drawn.")
SAMPLER = typer.Option("", help="Pick tokens by this sampler of a plugin: cacheir plugins list --kind samplers.")
LOGITS_PROCESSORS = typer.Option(
    [],
    "--logits-processor",
    help="Let this logits processor of a plugin change the logits; may be given several times, in order.",
)
STOP = typer.Option([], help="End the text before this string; may be given several times.")


def stats_line(stats: GenerationStats) -> str:
    """What an answer cost, in a line."""
    return (
        f"{stats.prompt_tokens} prompt tokens ({stats.cached_tokens} cached) in {stats.prefill_ms:.0f} ms, "
        f"{stats.prefill_tokens_per_s:.1f} tokens/s; first token after {stats.ttft_ms:.0f} ms; "
        f"{stats.sampled_tokens} tokens, {stats.decode_tokens_per_s:.1f} tokens/s; seed {stats.seed}; "
        f"ended by {stats.finish_reason}"
    )
