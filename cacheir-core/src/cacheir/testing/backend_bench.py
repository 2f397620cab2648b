"""What all checks of backends stand on: tiny programs for the backend, open executors, how far numbers may be apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.artifact.card import CompileOptions
from cacheir.errors import RequestError
from cacheir.plugins.ref import resolve
from cacheir.runtime.executor import Row
from cacheir.testing.hosts import plugin_host
from cacheir.testing.opened_backend import OpenedBackend
from cacheir.testing.tiny_decoders import tiny_decoders
from cacheir.testing.tiny_programs import TinyProgram

F32 = NDArray[np.float32]


class BackendBench:
    """A backend of a plugin under test; the fields are told at ``BackendTests``."""

    plugin: ClassVar[str]
    backend: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    executor_options: ClassVar[Mapping[str, Any]] = {}
    page_tokens: ClassVar[int] = 4
    tolerance: ClassVar[float] = 1e-4

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run each check that asks for a decoder on each of them."""
        if "decoder" in metafunc.fixturenames:
            metafunc.parametrize("decoder", tuple(tiny_decoders()))

    @pytest.fixture(autouse=True)
    def _needs_the_backend(self) -> None:
        """A backend that cannot work on this machine says so, and is not tested on it."""
        reason = resolve(plugin_host(self.plugin).backends[self.backend].probe)()
        if reason is not None:
            pytest.skip(reason)

    def tiny(self, decoder: str = "grouped", changed: Mapping[str, Any] | None = None) -> TinyProgram:
        """The program of a tiny decoder for the backend."""
        options = tuple(sorted(self.options.items()))
        if changed is None:
            return _compiled(self.plugin, self.backend, decoder, options)
        return TinyProgram(decoder, plugin_host(self.plugin), _options(self.backend, options), changed=changed)

    def open(self, tiny: TinyProgram | str = "grouped", **options: Any) -> OpenedBackend:
        """An executor with the program, and pages; ``options`` are fields of ``ExecutorOptions``."""
        program = self.tiny(tiny) if isinstance(tiny, str) else tiny
        return OpenedBackend(program, **{"page_tokens": self.page_tokens, **self.executor_options, **options})

    def compare(self, made: F32, expected: F32, where: str) -> None:
        """Raise AssertionError where logits are further from their meaning than ``tolerance``."""
        apart = float(np.abs(made - expected).max() / np.abs(expected).max())
        assert apart <= self.tolerance, (
            f"{where}: logits are {apart:.1e} of the largest from what the graph means, allowed {self.tolerance}"
        )

    def same(self, opened: OpenedBackend, made: F32, expected: F32, what: str) -> None:
        """Raise AssertionError where ``what`` changed numbers by more than the backend's stated determinism allows."""
        if opened.executor.capabilities().determinism == "bit":
            equal = made.tobytes() == expected.tobytes()
            assert equal, f"{what} changes bits of logits, and the backend states determinism 'bit'"
        else:
            self.compare(made, expected, what)

    def must_raise(self, kind: type[Exception], what: str, call: Callable[[], Any]) -> None:
        """Raise AssertionError where ``call`` does not raise a ``kind``; ``what`` says what must be one."""
        try:
            call()
        except kind as error:
            assert " " in str(error), f"{what}: say what was wrong in a sentence, not {str(error)!r}"
            return
        raise AssertionError(f"{what} must raise {kind.__name__}, and raises nothing")

    def refused(self, opened: OpenedBackend, mode: str, rows: Sequence[Row], what: str) -> None:
        """Raise AssertionError where a step of ``rows`` is no RequestError."""
        self.must_raise(RequestError, f"a step with {what}", lambda: opened.step(mode, *rows))


@cache  # a tiny program is the same each time, and most of a check would be compiling it
def _compiled(plugin: str, backend: str, decoder: str, options: tuple[tuple[str, Any], ...]) -> TinyProgram:
    return TinyProgram(decoder, plugin_host(plugin), _options(backend, options))


def _options(backend: str, options: Sequence[tuple[str, Any]]) -> CompileOptions:
    return CompileOptions(target=backend, **dict(options))
