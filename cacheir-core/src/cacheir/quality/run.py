"""One quality report: both models are opened in turn, and the second is compared with what the first answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.errors import UsageError
from cacheir.plugins.installation import Installation
from cacheir.quality.answers import answers
from cacheir.quality.compare import Comparison, compare
from cacheir.quality.protocol import WINDOW, Protocol, protocol
from cacheir.runtime.executor import ExecutorOptions
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.opening import Opened, OpenOptions, find_program, load_tokenizer, open_anything
from cacheir.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to compare, and how it is opened."""

    model: str | Path | Artifact
    quant: str = ""
    kv_dtype: str = ""
    backend: str = "cpu"
    precise: bool = False


@dataclass(frozen=True, kw_only=True)
class TextChoice:
    """What is scored: see ``cacheir.quality.protocol``."""

    text: str
    window: int = WINDOW
    windows: int = 0
    skip: int = 0


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a model answered, to compare others with."""

    protocol: Protocol
    answers: list[F32]
    artifact: Artifact


def baseline(subject: Subject, choice: TextChoice, installation: Installation, progress: Progress) -> Baseline:
    """Open a model, score the text with it and close it."""
    opened = open_subject(subject, installation, progress)
    try:
        model: OpenModel = opened.model
        cut = _protocol(model.tokenizer, model.limits.max_seq, choice)
        progress(f"scoring {cut.scored} tokens")
        return Baseline(
            protocol=cut,
            answers=list(answers(model, cut)),
            artifact=opened.artifact,
        )
    finally:
        opened.model.executor.close()


def check_subject(subject: Subject, installation: Installation, progress: Progress) -> Artifact:
    """The program of a model, as it will be opened, so that what is wrong with it is said before another is scored.

    No weight is read. Raises what ``find_program`` raises.
    """
    return find_program(subject.model, _open_options(subject), installation, progress)[0]


def check_pair(one: Artifact, other: Artifact, choice: TextChoice, installation: Installation) -> None:
    """UsageError, before a weight of either is read, where two programs read the text as different tokens."""
    cuts = [
        _protocol(load_tokenizer(artifact, installation), artifact.program.max_seq, choice) for artifact in (one, other)
    ]
    _check_windows(cuts[1], cuts[0])


def compared(
    subject: Subject, choice: TextChoice, reference: Baseline, installation: Installation, progress: Progress
) -> tuple[Comparison, Artifact]:
    """Open a model and compare it with ``reference`` on the same text. UsageError where it reads the text otherwise."""
    opened = open_subject(subject, installation, progress)
    try:
        model: OpenModel = opened.model
        _check_windows(_protocol(model.tokenizer, model.limits.max_seq, choice), reference.protocol)
        progress(f"scoring {reference.protocol.scored} tokens")
        found = compare(reference.answers, answers(opened.model, reference.protocol), reference.protocol)
        return found, opened.artifact
    finally:
        opened.model.executor.close()


def _protocol(tokenizer: Tokenizer | None, max_seq: int, choice: TextChoice) -> Protocol:
    if tokenizer is None:
        raise UsageError("the model has no tokenizer, so a text cannot be scored")
    window = min(choice.window, max_seq)
    return protocol(choice.text, tokenizer.encode(choice.text), window=window, windows=choice.windows, skip=choice.skip)


def _check_windows(found: Protocol, wanted: Protocol) -> None:
    if found.windows != wanted.windows:
        raise UsageError(
            "the two models read the text as different tokens, so their answers cannot be compared",
            hint="compare two forms of one model",
        )


def open_subject(subject: Subject, installation: Installation, progress: Progress) -> Opened:
    """The model, compiled where it must be; its executor is the caller's to close."""
    return open_anything(subject.model, _open_options(subject), installation, progress)


def _open_options(subject: Subject) -> OpenOptions:
    return OpenOptions(
        backend=subject.backend,
        compile=CompileOptions(quant=subject.quant, precise=subject.precise),
        executor=ExecutorOptions(kv_dtype=subject.kv_dtype),
    )
