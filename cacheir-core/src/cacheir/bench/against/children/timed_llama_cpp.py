"""llama.cpp's side of a comparison, through the C interface that llama-cpp-python exposes.

As its own benchmark tool does, it feeds tokens and samples none: a decode step ends with the logits.
"""

from __future__ import annotations

import importlib
import random
import time
from typing import Any

_PROMPT = 16
# llama_load_mode of releases from 0.3.36 on, and use_mmap of those before it.
_LOAD_INTO_MEMORY, _LOAD_MAPPED = 0, 1
_LONGEST_PREFILL, _ROOM_EACH = 1024, 160


class _LlamaCpp:
    """One loaded file with a context for one sequence and one for a batch, made when first needed."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._library = library = importlib.import_module("llama_cpp")
        library.llama_backend_init()
        self._threads, self._flash = options["threads"], options["flash_attention"]
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        _set_mapping(parameters, mapped=not options["huge_pages"])
        self._model = library.llama_model_load_from_file(options["model"].encode(), parameters)
        if not self._model:
            raise RuntimeError("llama.cpp does not open the file")
        self._vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        self._contexts: dict[int, Any] = {}
        self._random = random.Random(0)
        # "CPU : SSE3 = 1 | AVX512 = 1 | ...": what it was built with and found here.
        self.facts = {
            "engine": "llama.cpp",
            "version": library.__version__,
            "built_for": library.llama_print_system_info().decode(errors="replace").strip(),
        }

    def run(self, cell: dict[str, Any]) -> float:
        """A prefill of ``tokens``, or ``tokens`` decode steps of ``batch`` sequences after a short prompt."""
        context = self._context(cell["batch"])
        self._library.llama_memory_clear(self._library.llama_get_memory(context), True)
        if cell["kind"] == "prefill":
            return self._timed_step(context, [(0, place) for place in range(cell["tokens"])], last_only=True)
        sequences = range(cell["batch"])
        for sequence in sequences:
            self._timed_step(context, [(sequence, place) for place in range(_PROMPT)], last_only=True)
        return sum(
            self._timed_step(context, [(sequence, _PROMPT + step) for sequence in sequences], last_only=False)
            for step in range(cell["tokens"])
        )

    def _timed_step(self, context: Any, places: list[tuple[int, int]], *, last_only: bool) -> float:
        """One call with a random token at each (sequence, position); filling the batch is not timed."""
        library = self._library
        batch = library.llama_batch_init(len(places), 0, 1)
        batch.n_tokens = len(places)
        for index, (sequence, position) in enumerate(places):
            batch.token[index] = self._random.randrange(self._vocabulary)
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = int(not last_only or index == len(places) - 1)
        began = time.perf_counter()
        failed = library.llama_decode(context, batch)
        library.llama_synchronize(context)
        seconds = time.perf_counter() - began
        library.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode gave {failed}")
        return seconds

    def _context(self, batch: int) -> Any:
        if batch not in self._contexts:
            library = self._library
            parameters = library.llama_context_default_params()
            parameters.n_ctx = _LONGEST_PREFILL if batch == 1 else batch * _ROOM_EACH
            parameters.n_batch = parameters.n_ubatch = 512
            parameters.n_seq_max = batch
            parameters.n_threads = parameters.n_threads_batch = self._threads
            parameters.flash_attn_type = 1 if self._flash else 0
            parameters.no_perf = True
            context = library.llama_init_from_model(self._model, parameters)
            if not context:
                raise RuntimeError("llama.cpp makes no context for the file")
            self._contexts[batch] = context
        return self._contexts[batch]


def _set_mapping(parameters: Any, *, mapped: bool) -> None:
    """Weights mapped from the file, or read into memory of its own. A name that a structure of ctypes does not have
    would be set without an effect, so the releases are told apart.
    """
    names = {name for name, *_ in parameters._fields_}
    if "load_mode" in names:
        parameters.load_mode = _LOAD_MAPPED if mapped else _LOAD_INTO_MEMORY
    elif "use_mmap" in names:
        parameters.use_mmap = mapped
    else:
        raise RuntimeError("this release of llama-cpp-python loads in a way that is not known here")


def open_engine(options: dict[str, Any]) -> _LlamaCpp:
    """Opens ``options["model"]``."""
    return _LlamaCpp(options)
