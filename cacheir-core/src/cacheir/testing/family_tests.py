"""Checks that every family of models must pass, against an oracle. Subclass ``FamilyTests``::

class TestMamba(FamilyTests):
    plugins = ("cacheir_cpu.plugin", "cacheir_importers.plugin", "cacheir_mamba")

    @classmethod
    def write_model(cls, folder): ...  # a tiny model whose logits lead clearly

    @classmethod
    def make_oracle(cls, folder): ...  # ids -> logits of another implementation
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.ir.verify import verify_module
from cacheir.models.decoder_graph import SizeLimits, build_logical, weight_types
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.plugins.installation import Installation
from cacheir.runtime.runtime import Runtime
from cacheir.testing.hosts import plugin_host

F32 = NDArray[np.float32]
Oracle = Callable[[Sequence[int]], F32]
_PAGE_TOKENS, _CHUNK_TOKENS = 3, 8


@dataclass(frozen=True)
class FamilyCase:
    """A model of the family, opened and not read, and what its logits should be."""

    folder: Path
    model: ImportedModel
    oracle: Oracle
    installation: Installation

    @property
    def positions(self) -> int:
        """How long a sequence of the model may be."""
        assert self.model.spec is not None, "the importer gave no DecoderSpec"
        return self.model.spec.max_positions


class FamilyTests:
    """What holds for a family, seen on one tiny model of it.

    ``write_model`` makes the model and ``make_oracle`` gives ``ids -> logits`` f32 [len(ids), V] of an implementation
    apart from this one. ``plugins`` are the installation: a backend, an importer, the family's plugin. ``tolerance``
    is the largest difference of logits. ``prompt`` must be longer than a window of the model, and ``long_tokens``
    longer than the length that a scaled rotation was made for.
    """

    plugins: ClassVar[tuple[str, ...]]
    tolerance: ClassVar[float] = 1e-4
    prompt: ClassVar[tuple[int, ...]] = tuple(3 + (index * index * 7 + index) % 280 for index in range(21))
    greedy_tokens: ClassVar[int] = 64
    decoded_tokens: ClassVar[int] = 24
    long_tokens: ClassVar[int] = 160

    @classmethod
    def write_model(cls, folder: Path) -> None:
        """Write a tiny model into ``folder``, which does not exist yet."""
        raise AssertionError(f"{cls.__name__} must define write_model(folder)")

    @classmethod
    def make_oracle(cls, folder: Path) -> Oracle:
        """The other implementation of the model in ``folder``."""
        raise AssertionError(f"{cls.__name__} must define make_oracle(folder)")

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FamilyCase]:
        """The model, made once for the class; its programs are kept in a cache of their own."""
        place = tmp_path_factory.mktemp("family")
        installation = plugin_host(*cls.plugins)
        cls.write_model(place / "model")
        importer = find_importer(place / "model", installation)
        model = open_model(ModelSource(place / "model", importer, "model"), installation)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CACHEIR_CACHE_DIR", str(place / "cache"))
            yield FamilyCase(place / "model", model, cls.make_oracle(place / "model"), installation)

    def test_every_field_is_read(self, case: FamilyCase) -> None:
        """What the configuration says and no reader reads may change what the model computes."""
        unread = [note for note in case.model.notes if "nothing used" in note or "not used" in note]
        assert not unread, f"the config reader leaves something out: {unread}; read it, or say that it has no influence"

    def test_graphs_verify_after_every_pass(self, case: FamilyCase) -> None:
        """The block builder's graphs are valid, and so are those that all passes make of them, in both modes."""
        spec = case.model.spec
        assert spec is not None, "the importer gave no DecoderSpec"
        ops, limits = case.installation.ops.by_name(), SizeLimits(max_tokens=32, max_rows=4, max_seq=64)
        families = case.installation.families.by_name()
        logical = build_logical(spec, weight_types(case.model.sources), ops=ops, families=families, limits=limits)
        result = run_pipeline(
            logical,
            case.installation.passes.contributions,
            ops=ops,
            spec=spec,
            options=PipelineOptions(target="cpu", limits=limits, check_text=True),
        )
        for module in result.modules.values():
            verify_module(module, ops)

    def test_logits_of_prefill(self, case: FamilyCase) -> None:
        """The last position of prompts of one token, of two and of many, each fed at once."""
        with self.open(case) as runtime:
            for length in sorted({1, 2, len(self.prompt) // 2, len(self.prompt)}):
                expected = self.expected(case, self.prompt, length)
                with runtime.session() as session:
                    session.append(self.prompt[:length])
                    self.compare(session.logits(), expected[length - 1], f"a prompt of {length} tokens")

    def test_logits_of_paged_decode(self, case: FamilyCase) -> None:
        """A prompt in chunks, then token by token, over pages that no row fills evenly."""
        tokens = (*self.prompt, *reversed(self.prompt))[: len(self.prompt) + self.decoded_tokens]
        expected = self.expected(case, tokens, len(self.prompt))
        paged = self.open(case, page_tokens=_PAGE_TOKENS, chunk_tokens=_CHUNK_TOKENS)
        with paged as runtime, runtime.session() as session:
            session.append(self.prompt)
            self.compare(session.logits(), expected[len(self.prompt) - 1], "the prompt")
            for position in range(len(self.prompt), len(tokens)):
                session.append([tokens[position]])
                self.compare(session.logits(), expected[position], f"position {position}")

    def test_greedy_tokens(self, case: FamilyCase) -> None:
        """Every token is the oracle's best one, as far as that leads by more than both may be wrong."""
        with self.open(case) as runtime:
            count = min(self.greedy_tokens, case.positions - len(self.prompt))
            made = list(runtime.generate_ids(list(self.prompt), count, ignore_eos=True))
        tokens = [*self.prompt, *made]
        expected = self.expected(case, tokens, len(self.prompt))[len(self.prompt) - 1 : -1]
        second, first = np.sort(expected, axis=-1)[:, -2:].T
        clear = first - second > 2 * self.tolerance
        assert clear.mean() > 0.9, "the model's best tokens do not lead: give it larger weights"
        wrong = np.flatnonzero(clear & (expected.argmax(-1) != np.array(made)))
        assert not len(wrong), f"token {wrong[0]} after the prompt is {made[wrong[0]]}, not the oracle's"

    def test_logits_at_long_positions(self, case: FamilyCase) -> None:
        """Far beyond the prompt: past windows, and past the length that a scaled rotation was made for."""
        with self.open(case) as runtime:
            length = min(self.long_tokens, case.positions - 1)
            tokens = [3 + (index * index * 5 + 11 * index) % 280 for index in range(length)]
            expected = self.expected(case, tokens, length - 4)
            with runtime.session() as session:
                session.append(tokens[: length - 4])
                self.compare(session.logits(), expected[length - 5], f"position {length - 5}")
                for position in range(length - 4, length):
                    session.append([tokens[position]])
                    self.compare(session.logits(), expected[position], f"position {position}")

    def test_windows_are_shorter_than_the_prompt(self, case: FamilyCase) -> None:
        """A window that the prompt does not leave is a window that no test has seen."""
        assert case.model.spec is not None
        windows = {layer.window for layer in case.model.spec.layers if layer.window}
        assert all(window < len(self.prompt) for window in windows), (
            f"the model has windows of {sorted(windows)} positions and the prompt {len(self.prompt)} tokens"
        )

    def expected(self, case: FamilyCase, ids: Sequence[int], prompt: int) -> F32:
        """The oracle's logits for ``ids``, of which the first ``prompt`` were given at once and the others one by one.

        To be overridden by a family whose logits depend on that: its rotation follows the length of the sequence.
        """
        return case.oracle(ids)

    def open(self, case: FamilyCase, **options: Any) -> Runtime:
        """A runtime on the model, with the installation of the class."""
        return Runtime(case.folder, installation=case.installation, **options)

    def compare(self, made: Any, expected: F32, where: str) -> None:
        """Raise AssertionError where logits are further apart than ``tolerance``."""
        apart = float(np.abs(np.asarray(made) - expected).max())
        assert apart <= self.tolerance, f"logits of {where} are {apart:.2e} from the oracle's, allowed {self.tolerance}"
