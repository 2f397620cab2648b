"""``cacheir run``: one prompt in, one text out, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from cacheir.cli import model_options, sampling_options
from cacheir.cli.output import print_json, say
from cacheir.errors import UsageError
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.session import Piece

app = typer.Typer(help="Generate text.", add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    model: str = model_options.MODEL,
    prompt: str = typer.Option(None, help="The text to continue; without it, or as -, standard input is read."),
    chat: bool = typer.Option(False, "--chat", help="Ask the prompt as a question, by the model's chat template."),
    system: str = typer.Option(None, help="What the model is told before the question; only with --chat."),
    max_new_tokens: int = sampling_options.MAX_NEW_TOKENS,
    temperature: float = sampling_options.TEMPERATURE,
    top_k: int = sampling_options.TOP_K,
    top_p: float = sampling_options.TOP_P,
    min_p: float = sampling_options.MIN_P,
    typical_p: float = sampling_options.TYPICAL_P,
    repetition_penalty: float = sampling_options.REPETITION_PENALTY,
    presence_penalty: float = sampling_options.PRESENCE_PENALTY,
    frequency_penalty: float = sampling_options.FREQUENCY_PENALTY,
    min_tokens: int = sampling_options.MIN_TOKENS,
    seed: int = sampling_options.SEED,
    stop: list[str] = sampling_options.STOP,
    sampler: str = sampling_options.SAMPLER,
    logits_processors: list[str] = sampling_options.LOGITS_PROCESSORS,
    ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Go on where the model would end the text."),
    backend: str = model_options.BACKEND,
    threads: int = model_options.THREADS,
    max_seq: int = model_options.MAX_SEQ,
    batch_invariant: bool = model_options.BATCH_INVARIANT,
    precise: bool = model_options.PRECISE,
    strict: bool = model_options.STRICT,
    quant: str = model_options.QUANT,
    kv_dtype: str = model_options.KV_DTYPE,
    kv_window: int = model_options.KV_WINDOW,
    kv_sinks: int = model_options.KV_SINKS,
    cuda_dtype: str = model_options.CUDA_DTYPE,
    unfuse: list[str] = model_options.UNFUSE,
    stats: bool = typer.Option(False, "--stats", help="Say on standard error what it cost."),
    as_json: bool = typer.Option(False, "--json", help="Print ids, text and costs as JSON once it is done."),
) -> None:
    """Generate text. It comes on standard output, everything else on standard error."""
    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        seed=seed,
        max_tokens=max_new_tokens,
        stop=tuple(stop),
        sampler=sampler,
        logits_processors=tuple(logits_processors),
        ignore_eos=ignore_eos,
    )
    if system is not None and not chat:
        raise UsageError("--system has a meaning only with --chat", hint="add --chat, or put it into the prompt")
    text = read_prompt() if prompt in (None, "-") else prompt
    with model_options.open_runtime(
        model,
        backend=backend,
        threads=threads,
        max_seq=max_seq,
        batch_invariant=batch_invariant,
        precise=precise,
        strict=strict,
        quant=quant,
        kv_dtype=kv_dtype,
        kv_window=kv_window,
        kv_sinks=kv_sinks,
        cuda_dtype=cuda_dtype,
        unfuse=unfuse,
    ) as runtime:
        ids = runtime.chat_ids(_messages(text, system)) if chat else runtime.encode(text)
        with runtime.session() as session:
            session.append(ids)
            pieces = list(_shown(session.generate(sampling), shown=not as_json))
            cost = session.stats
        assert cost is not None  # the answer has ended
        if as_json:
            print_json(
                {
                    "format": 1,
                    "backend": runtime.backend_choice.name,
                    "backend_reason": runtime.backend_choice.reason,
                    "prompt_ids": ids,
                    "ids": [token for piece in pieces for token in piece.ids],
                    "text": "".join(piece.text for piece in pieces),
                    "finish_reason": cost.finish_reason,
                    "stats": cost.to_json(),
                }
            )
        if stats:
            say(f"backend {runtime.backend_choice}")
            say(sampling_options.stats_line(cost))


def read_prompt() -> str:
    """Standard input as a prompt, without the line break at its very end that ``echo`` puts there."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no prompt", hint='give --prompt "TEXT", or pipe one in')
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as fault:
        raise UsageError(f"standard input is not UTF-8: byte {fault.start} is {data[fault.start]:#04x}") from fault


def _messages(text: str, system: str | None) -> list[Mapping[str, Any]]:
    first = [{"role": "system", "content": system}] if system is not None else []
    return [*first, {"role": "user", "content": text}]


def _shown(pieces: Iterator[Piece], *, shown: bool) -> Iterator[Piece]:
    """The pieces, each on standard output before the next is made; a line break ends the text."""
    for piece in pieces:
        if shown and piece.text:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        yield piece
    if shown:
        print(flush=True)
