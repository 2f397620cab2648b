"""``cacheir chat``: a conversation in the terminal, or piped in a line a turn; what was computed once is kept."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer

from cacheir.cli import model_options, sampling_options
from cacheir.cli.output import say
from cacheir.errors import RequestError
from cacheir.runtime.runtime import Runtime
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.session import Session

app = typer.Typer(help="Talk to a model.", add_completion=False, rich_markup_mode=None)

_HELP = "/reset begins anew, /exit ends; Ctrl-C stops an answer"


@app.command()
def chat(
    model: str = model_options.MODEL,
    system: str = typer.Option(None, help="What the model is told before the conversation."),
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
    stats: bool = typer.Option(False, "--stats", help="Say on standard error what each answer cost."),
) -> None:
    """Talk to a model. Each line is a turn; /reset begins anew, /exit ends, Ctrl-C stops the answer only."""
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
    )
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
        # A model without a template is refused before the first question, not after it.
        _ = runtime.chat_template
        if sys.stdin is not None and sys.stdin.isatty():
            say(_HELP)
        with runtime.session() as session:
            Conversation(runtime, session, system, sampling, tell_stats=stats).talk(_lines())


class Conversation:
    """The messages so far and the session that holds their keys and values."""

    def __init__(
        self, runtime: Runtime, session: Session, system: str | None, sampling: SamplingParams, *, tell_stats: bool
    ) -> None:
        self._runtime = runtime
        self._session = session
        self._beginning = [{"role": "system", "content": system}] if system is not None else []
        self._messages: list[dict[str, Any]] = list(self._beginning)
        self._sampling = sampling
        self._tell_stats = tell_stats

    def talk(self, lines: Iterator[str]) -> None:
        """Answers each line until there is no more, or one says ``/exit``."""
        for line in lines:
            if line.strip() == "/exit":
                return
            if line.strip() == "/reset":
                self._messages = list(self._beginning)
                continue
            if not line.strip():
                continue
            try:
                self._answer(line)
            except RequestError as error:
                # The turn is taken back; the conversation goes on without it.
                say(f"error: {error}")
                say("hint: /reset begins anew" if error.hint is None else f"hint: {error.hint}")

    def _answer(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        self._session.continue_with(self._runtime.chat_ids(asked))
        pieces = self._session.generate(self._sampling)
        text = ""
        with _stop_asked() as stop_asked:
            for piece in pieces:
                text += piece.text
                sys.stdout.write(piece.text)
                sys.stdout.flush()
                if stop_asked:
                    break
        stopped = bool(stop_asked)
        print(" [stopped]" if stopped else "", flush=True)
        if stopped:
            pieces.close()
        elif self._tell_stats and self._session.stats is not None:
            say(sampling_options.stats_line(self._session.stats))
        self._messages = [*asked, {"role": "assistant", "content": text}]


@contextmanager
def _stop_asked() -> Iterator[list[int]]:
    """A list that holds something once Ctrl-C was pressed; pressed again, it interrupts the command.

    Nothing is raised in the middle of a step, so that the session stays whole.
    """
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
    """The user's lines: with a prompt and line editing in a terminal, else standard input."""
    if sys.stdin is None:  # it is closed
        return
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.removesuffix("\n")
        return
    with suppress(ImportError):  # it gives input() its editing, and is not on every platform
        import readline  # noqa: F401
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
