"""From what a user names (an artifact, a model folder, a file, a named model) to an open model on a backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.errors import CacheIRError, PluginError, UsageError
from cacheir.models.imported import PLAIN_MODE
from cacheir.plugins.backend_options import check_backend_options
from cacheir.plugins.ref import resolve
from cacheir.quick_dataclass import dataclass
from cacheir.runtime.backend_choice import LAST_RESORT, BackendChoice, choose_backend
from cacheir.runtime.executor import Executor, ExecutorOptions
from cacheir.runtime.host_sampling import open_sampler
from cacheir.runtime.open_model import OpenModel, open_model
from cacheir.runtime.tokenizer import Tokenizer
from cacheir.runtime.usable_cores import usable_cores

if TYPE_CHECKING:
    from cacheir.artifact.artifact import Artifact
    from cacheir.artifact.card import Card, CompileOptions
    from cacheir.models.imported import TokenizerSource
    from cacheir.plugins.installation import Installation

# Slots are int32 (``%slots i32[T]``), and the last page is a whole one.
MOST_KV_TOKENS = 1 << 30

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """How a model is opened. ``compile`` counts where it has to be compiled; its target is the backend's name.

    ``kv_tokens`` 0 means one full context, and no fewer than 8192 positions.
    """

    backend: str = "auto"
    compile: CompileOptions | None = None
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)
    kv_tokens: int = 0
    chunk_tokens: int = 512

    def __post_init__(self) -> None:
        if self.kv_tokens > MOST_KV_TOKENS or self.executor.page_tokens > MOST_KV_TOKENS:
            raise UsageError(
                f"KV pools of {self.kv_tokens} positions in pages of {self.executor.page_tokens} cannot be had: places "
                f"in a pool are numbers of 32 bits, so that it holds at most {MOST_KV_TOKENS}",
                hint="leave kv_tokens at 0 for one full context",
            )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open model, the artifact behind it and how its backend was chosen."""

    model: OpenModel
    artifact: Artifact
    backend_choice: BackendChoice


def open_anything(
    model: str | Path | Artifact, options: OpenOptions, installation: Installation, progress: Progress
) -> Opened:
    """Compiles where it must, loads, and opens the pools. Everything that was opened is closed again on an error."""
    artifact, choice = find_program(model, options, installation, progress)
    backend = installation.backends[artifact.program.backend]
    extra = {**artifact.card.options.backend_options, **options.executor.extra}
    check_backend_options(backend, extra)
    executor_options = replace(
        options.executor,
        threads=options.executor.threads or usable_cores(),
        batch_invariant=artifact.card.options.batch_invariant,
        extra=extra,
        installation=installation,
        carried=artifact.carried,
    )
    executor: Executor = resolve(backend.executor)(executor_options)
    try:
        progress(f"loading the weights on {backend.name}{_why_not_another(choice)}")
        executor.load(artifact.program, artifact.open_weights())
        opened = open_model(
            artifact.program,
            executor,
            load_tokenizer(artifact, installation),
            page_tokens=executor_options.page_tokens,
            kv_tokens=options.kv_tokens,
            chunk_tokens=options.chunk_tokens,
            kv_dtype=executor_options.kv_dtype,
            on_done=lambda stats: installation.observe("cacheir_request_done", stats=stats),
            make_sampler=lambda params: open_sampler(params, installation),
            identity=cache(lambda: _identity(artifact)),
        )
        for note in executor.capabilities().notes:
            progress(f"{backend.name}: {note}")
    except BaseException:
        executor.close()
        raise
    return Opened(model=opened, artifact=artifact, backend_choice=choice)


def _why_not_another(choice: BackendChoice) -> str:
    """Where only the last resort was left, what keeps the others from working: a person may mend that."""
    if choice.name != LAST_RESORT or not choice.refusals:
        return ""
    return "; " + "; ".join(f"{name} cannot work here: {why}" for name, why in choice.refusals.items())


def _identity(artifact: Artifact) -> tuple[str, str]:
    weights = artifact.open_weights()
    try:
        return artifact.lock.program_key, weights.content_hash()
    finally:
        weights.close()


def load_tokenizer(artifact: Artifact, installation: Installation) -> Tokenizer | None:
    """The program's tokenizer, None where its model came without one."""
    source = artifact.program.tokenizer
    return None if source is None else open_tokenizer(source, installation)


def open_tokenizer(source: TokenizerSource, installation: Installation) -> Tokenizer:
    """The tokenizer that ``source`` describes. PluginError where its loader raises."""
    spec = installation.tokenizers[source.kind]
    try:
        tokenizer: Tokenizer = resolve(spec.load)(source)
    except CacheIRError:
        raise
    except Exception as error:
        raise PluginError(f"tokenizer {spec.name!r} raised {type(error).__name__}: {error}") from error
    return tokenizer


def find_program(
    model: Any, options: OpenOptions, installation: Installation, progress: Progress
) -> tuple[Artifact, BackendChoice]:
    """The program that ``open_anything`` would load, compiled where it must be, and the backend; no weight is read.

    Raises what finding, compiling and choosing a backend raise, so it tells whether ``options`` are possible.
    """
    from cacheir.artifact import layout
    from cacheir.artifact.artifact import Artifact
    from cacheir.artifact.card import CompileOptions
    from cacheir.artifact.read import read_card
    from cacheir.compile import open_program
    from cacheir.models.find_model import find_path

    wanted = options.compile or CompileOptions()
    card: Card | None
    if isinstance(model, Artifact):
        card, path = model.card, model.path
    else:
        path = find_path(model, installation)
        card = read_card(path) if layout.is_artifact(path) else None
    if card is not None:
        _check_artifact(card, path, wanted)
    choice = choose_backend(installation, options.backend, demanded=card.backend if card else "")
    # Before a compile that takes long: most likely the option is another backend's.
    backends = installation.backends
    check_backend_options(backends[choice.name], options.executor.extra, backends=backends)
    if isinstance(model, Artifact):
        return model, choice
    wanted = replace(wanted, target=choice.name)
    return open_program(path, wanted, installation=installation, progress=progress), choice


def _check_artifact(card: Card, path: Path, wanted: CompileOptions) -> None:
    """What an artifact was compiled for cannot be changed by opening it."""
    missing = [mode for mode in ("prefill", "decode") if mode not in card.options.modes]
    if PLAIN_MODE in card.options.modes:
        raise UsageError(
            f"{path} is a plain graph, so it cannot generate", hint="cacheir execute runs a plain graph on arrays"
        )
    if missing:
        raise UsageError(
            f"{path} was compiled without {missing[0]}, so it cannot generate",
            hint="compile the model again with both modes",
        )
    if wanted.batch_invariant and not card.options.batch_invariant:
        raise UsageError(
            f"{path} was not compiled batch-invariant", hint="compile the model again with --batch-invariant"
        )
    if wanted.precise and not card.options.precise:
        raise UsageError(
            f"{path} was compiled with kernels that may round", hint="compile the model again with --precise"
        )
    if wanted.quant:
        raise UsageError(
            f"{path} is an artifact, whose weights are what they are",
            hint=f"compile the model again with --quant {wanted.quant}",
        )
    if wanted.strict and not card.options.strict:
        raise UsageError(
            f"{path} was compiled without asking whether all of the model is used",
            hint="compile the model again with --strict",
        )
    for name in ("kv_window", "kv_sinks"):
        asked, has = getattr(wanted, name), getattr(card.options, name)
        if asked and asked != has:
            raise UsageError(
                f"{path} was compiled with {name} {has}, not {asked}",
                hint=f"compile the model again with --{name.replace('_', '-')} {asked}",
            )
    if wanted.max_seq and wanted.max_seq != card.max_seq:
        raise UsageError(
            f"{path} was compiled for {card.max_seq} positions, not {wanted.max_seq}",
            hint=f"compile the model again with --max-seq {wanted.max_seq}",
        )
