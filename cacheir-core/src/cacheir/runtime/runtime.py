"""``Runtime``: a model that is open and can be asked. Text in, text out; sessions for more than one question."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cacheir.arguments import (
    checked_count,
    checked_flag,
    checked_instance,
    checked_options,
    checked_place,
    checked_string,
    checked_strings,
)
from cacheir.errors import RequestError, UsageError
from cacheir.runtime.chat_messages import checked_messages, guarded
from cacheir.runtime.chat_template import ChatTemplate
from cacheir.runtime.executor import ExecutorOptions, MemoryUse
from cacheir.runtime.opening import OpenOptions, open_anything
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.sequence import Sequence as TokenSequence
from cacheir.runtime.session import Piece, Session
from cacheir.runtime.stats import GenerationStats

if TYPE_CHECKING:
    from cacheir.artifact.artifact import Artifact
    from cacheir.artifact.card import CompileOptions
    from cacheir.plugins.installation import Installation
    from cacheir.runtime.open_model import OpenModel

Pieces = Generator[Piece, None, None]

_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))


class Runtime:
    """An open model. Use it in a ``with`` block, or close it.

        with Runtime("smollm2") as runtime:
            for piece in runtime.generate("The capital of France is", max_new_tokens=16):
                print(piece, end="")

    ``model`` is an artifact (opened, or its folder), a model folder, a file, or a named model; what is not compiled is
    compiled, and kept in the cache. ``backend`` is a name or ``auto``; ``backend_choice`` says which it became and why.
    ``max_seq`` 0 means the model's own context as the compiler bounds it. ``batch_invariant`` makes a row's bits
    independent of what runs beside it. ``kv_tokens`` is how many positions all sessions together may hold (0: one full
    context, at least 8192), ``page_tokens`` how many make a page, ``chunk_tokens`` how much of a prompt runs at once.
    ``unfuse`` names nodes to run by their meaning: ``product``, or ``product@3`` for layer 3 alone. ``backend_options``
    are the backend's own (``cuda_dtype`` of cuda). ``progress`` is called with what takes long.
    """

    def __init__(
        self,
        model: str | Path | Artifact,
        backend: str = "auto",
        *,
        max_seq: int = 0,
        threads: int = 0,
        batch_invariant: bool = False,
        page_tokens: int = 16,
        kv_tokens: int = 0,
        kv_dtype: str = "",
        chunk_tokens: int = 512,
        unfuse: Sequence[str] = (),
        backend_options: Mapping[str, Any] | None = None,
        compile_options: CompileOptions | None = None,
        installation: Installation | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        from cacheir.artifact.artifact import Artifact
        from cacheir.artifact.card import CompileOptions
        from cacheir.plugins.installation import default

        base = checked_instance("compile_options", compile_options, CompileOptions) or CompileOptions()
        if not isinstance(model, Artifact):
            checked_place("model", model)
        for name, value in (("max_seq", max_seq), ("page_tokens", page_tokens), ("kv_tokens", kv_tokens)):
            checked_count(name, value)
        options = OpenOptions(
            backend=checked_string("backend", backend),
            compile=replace(
                base,
                max_seq=max_seq or base.max_seq,
                batch_invariant=checked_flag("batch_invariant", batch_invariant) or base.batch_invariant,
            ),
            executor=ExecutorOptions(
                threads=_threads(threads),
                kv_dtype=checked_string("kv_dtype", kv_dtype),
                page_tokens=page_tokens,
                unfuse=checked_strings("unfuse", unfuse),
                extra=checked_options("backend_options", backend_options),
            ),
            kv_tokens=kv_tokens,
            chunk_tokens=checked_count("chunk_tokens", chunk_tokens),
        )
        opened = open_anything(model, options, installation or default(), progress or (lambda text: None))
        self.artifact = opened.artifact
        self.backend_choice = opened.backend_choice
        self._model = opened.model
        self._stats: GenerationStats | None = None

    def generate(
        self, prompt: str, max_new_tokens: int | None = None, *, sampling: SamplingParams | None = None, **fields: Any
    ) -> Iterator[str]:
        """The text that continues ``prompt``, in pieces as they come; greedy unless asked otherwise.

        ``max_new_tokens`` None means as many as the context holds. Sampling is a ``SamplingParams`` or its fields:
        ``temperature top_k top_p min_p seed stop ...``. Raises ``RequestError`` at once, before
        the first piece is taken.
        """
        return self._texts(self._pieces(self.encode(prompt), max_new_tokens, sampling, fields))

    def generate_ids(
        self,
        ids: Sequence[int],
        max_new_tokens: int | None = None,
        *,
        sampling: SamplingParams | None = None,
        **fields: Any,
    ) -> Iterator[int]:
        """The ids that continue ``ids``; the one that ends the answer is not among them."""
        return self._tokens(self._pieces(ids, max_new_tokens, sampling, fields))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_new_tokens: int | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling: SamplingParams | None = None,
        **fields: Any,
    ) -> Iterator[str]:
        """The assistant's answer to ``messages`` (``{"role": "user", "content": "..."}``), as ``generate`` gives it."""
        return self._texts(self._pieces(self.chat_ids(messages, tools=tools), max_new_tokens, sampling, fields))

    def session(self) -> Session:
        """A new session without tokens; close it when it is done."""
        return Session(self._model, TokenSequence(tables=self._model.runner.kv.empty()))

    def restore(self, path: str | Path) -> Session:
        """The session that ``Session.save`` wrote, for the same program, weights, backend, page size and KV format.

        Nothing is computed again, and the answer goes on bit for bit as it would have. ``ArtifactDamagedError`` for a
        file that is not whole or no session, ``UsageError`` for one of another model.
        """
        from cacheir.runtime.session_file import restore_session

        return Session(self._model, restore_session(self._model, Path(checked_place("path", path))))

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, the token that begins a text included where the model wants one."""
        return self._model.encoder.text_ids(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids."""
        return self._model.tokenizer.decode(ids, skip_special=skip_special)

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of a chat by the model's own template. What users wrote never becomes a control token."""
        encoder = self._model.encoder
        (marked, marked_tools), guard = guarded((checked_messages(messages), tools), encoder.control_texts)
        rendered = self.chat_template.render(
            marked, tools=marked_tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return encoder.rendered_ids(rendered, guard)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template, compiled when it is first needed."""
        source = self._model.generation.chat_template
        if not source:
            raise RequestError(
                "this model has no chat template, so nobody knows how a chat is written for it",
                hint="give it a plain prompt: Runtime.generate, or cacheir run without --chat",
            )
        return ChatTemplate(source, self._model.generation.special_tokens)

    @property
    def model(self) -> OpenModel:
        """The loaded model, for those who build an engine or a server on it."""
        return self._model

    def stats(self) -> GenerationStats | None:
        """What the last answer of ``generate``, ``generate_ids`` or ``chat`` that ended cost; None before the first."""
        return self._stats

    def memory(self) -> MemoryUse:
        """The bytes that the executor owns now."""
        return self._model.executor.memory()

    def counters(self) -> Mapping[str, int]:
        """What the executor counts of its own accord (``executor.CountingExecutor``), {} where it counts nothing."""
        count = getattr(self._model.executor, "counters", None)
        return dict(count()) if count is not None else {}

    def close(self) -> None:
        """Lets go of weights and pools. Closing twice is allowed; sessions cannot be used any more."""
        self._model.runner.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pieces(
        self, ids: Sequence[int], max_new_tokens: int | None, sampling: SamplingParams | None, given: dict[str, Any]
    ) -> Pieces:
        """An answer in a session of its own. It is checked here; pages are taken when the first piece is."""
        params = _sampling(max_new_tokens, sampling, given)
        session = self.session()
        session.append(ids)
        return self._answer(session, session.generate(params))

    def _answer(self, session: Session, pieces: Pieces) -> Pieces:
        with session, closing(pieces):
            yield from pieces
            self._stats = session.stats

    def _texts(self, pieces: Pieces) -> Iterator[str]:
        with closing(pieces):
            for piece in pieces:
                if piece.text:
                    yield piece.text

    def _tokens(self, pieces: Pieces) -> Iterator[int]:
        with closing(pieces):
            for piece in pieces:
                yield from piece.ids


def _sampling(max_new_tokens: int | None, sampling: SamplingParams | None, given: dict[str, Any]) -> SamplingParams:
    unknown = sorted(set(given) - set(_SAMPLING_FIELDS))
    if unknown:
        raise UsageError(f"there is no sampling field {unknown[0]!r}", hint=f"there are {', '.join(_SAMPLING_FIELDS)}")
    if max_new_tokens is not None:
        given = {**given, "max_tokens": max_new_tokens}
    base = checked_instance("sampling", sampling, SamplingParams)
    return SamplingParams(**given) if base is None else replace(base, **given)


def _threads(threads: int) -> int:
    from cacheir import settings

    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise UsageError(f"threads must be at least 1, or 0 for as many as the process may use, not {threads!r}")
    return threads or settings.count("CACHEIR_THREADS")
