"""Checks that every importer must pass. Subclass ``ImporterTests``::

class TestNet(ImporterTests):
    plugins = ("cacheir_net",)
    importer = "net"

    @classmethod
    def write_model(cls, folder): ...  # a tiny model; gives its file or folder

    @classmethod
    def expected(cls, path): ...  # inputs and outputs, by another implementation
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cacheir.errors import CacheIRError, ModelError
from cacheir.ir.graph import Module
from cacheir.ir.verify import verify_module
from cacheir.models.decoder_graph import SizeLimits, build_logical
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.models.imported import ImportedModel, WeightSource
from cacheir.pipeline.unpack_recipes import imported_weight_types, with_recipes
from cacheir.plugins.installation import Installation
from cacheir.reference.interpreter import Interpreter
from cacheir.reference.recipes import weight_data
from cacheir.testing.hosts import plugin_host
from cacheir.testing.read_bytes import bytes_read
from cacheir.weights.sources import WeightFiles, check_source

_LIMITS = SizeLimits(max_tokens=64, max_rows=4, max_seq=64)
# Headers may be read twice, and by buffers that reach a little beyond them.
_READ_AHEAD = 64 << 10


@dataclass(frozen=True)
class ImportCase:
    """A model that was written, and what the importer made of it; nothing is read of its weights."""

    path: Path
    model: ImportedModel
    installation: Installation


class ImporterTests:
    """What holds for an importer, seen on one tiny model.

    ``plugins`` are the installation, ``importer`` the name of the one under test. ``expected(path)`` gives pairs of
    inputs and outputs: for a plain graph arrays by input name and a list of arrays, for a decoder a list of ids and
    logits f32 [ids, V]. ``tolerance`` is relative to the largest output.
    """

    plugins: ClassVar[tuple[str, ...]]
    importer: ClassVar[str]
    tolerance: ClassVar[float] = 1e-4

    @classmethod
    def write_model(cls, folder: Path) -> Path:
        """Write a tiny model into ``folder``, which is empty; gives what the importer is to open."""
        raise AssertionError(f"{cls.__name__} must define write_model(folder)")

    @classmethod
    def expected(cls, path: Path) -> Sequence[tuple[Any, Any]]:
        """Inputs and outputs of the model at ``path``, by another implementation."""
        raise AssertionError(f"{cls.__name__} must define expected(path)")

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImportCase]:
        """The model, written and opened once for the class."""
        folder = tmp_path_factory.mktemp("imported")
        path = cls.write_model(folder)
        installation = plugin_host(*cls.plugins)
        yield ImportCase(path, _open(cls.importer, path, installation), installation)

    def test_is_found(self, case: ImportCase) -> None:
        """Of all importers the installation has, this one takes the model."""
        try:
            found = find_importer(case.path, case.installation).name
        except CacheIRError as error:
            raise AssertionError(f"{error}: correct suffixes, marker_files or sniff") from error
        assert found == self.importer, f"{case.path.name} is taken by {found}: correct suffixes, marker_files or sniff"

    def test_says_the_same_twice(self, case: ImportCase) -> None:
        """Opening is reading headers, so it gives the same each time."""
        again = _open(self.importer, case.path, case.installation)
        assert again == case.model, "opening the model again gives another ImportedModel: take nothing from the clock"

    def test_places_of_tensors_are_true(self, case: ImportCase) -> None:
        """Every tensor lies inside its file, has the bytes that its type needs, and overlaps no other."""
        formats = case.installation.quant_formats.by_name()
        assert case.model.sources or not _graph(case).graphs[0].weights, "the model has weights and names no place"
        for key, source in case.model.sources.items():
            check_source(key, source, formats)
            size = (case.model.root / source.file).stat().st_size
            end = source.offset + source.nbytes
            assert end <= size, f"{key} ends at byte {end} of {source.file}, which has {size}"
            assert source.file in case.model.files, f"{source.file} holds {key} and is not among ImportedModel.files"
        for one, other in _overlaps(case.model.sources):
            raise AssertionError(f"{one} and {other} lie on the same bytes in part: one of the offsets is wrong")

    def test_reads_no_weights(self, case: ImportCase, tmp_path: Path) -> None:
        """A model whose weights hold other bytes is opened alike, and without reading them."""
        twin, root = _copied(case, tmp_path)
        for source in case.model.sources.values():
            _invert(root / source.file, source)
        with bytes_read() as read:
            model = _open(self.importer, twin, case.installation)
        same = replace(model, root=case.model.root, tokenizer=None) == replace(case.model, tokenizer=None)
        assert same, "the importer's result depends on the content of weights: read headers alone"
        if read.count is None:
            pytest.skip("this system does not count what a process reads; the result did not depend on weights")
        files = {source.file for source in case.model.sources.values()}
        total = sum((case.model.root / name).stat().st_size for name in {*case.model.files, *files})
        weights = sum(source.nbytes for source in case.model.sources.values())
        allowed = 3 * max(0, total - weights) + _READ_AHEAD
        assert read.count <= allowed, (
            f"opening reads {read.count} bytes of a model whose weights are {weights} of {total}: record where a tensor"
            " lies, and leave reading it to the weight store"
        )

    def test_the_test_model_is_large_enough(self, case: ImportCase) -> None:
        """Were headers larger than weights, nobody would see that weights are read."""
        weights = sum(source.nbytes for source in case.model.sources.values())
        assert weights > 2 * _READ_AHEAD, (
            f"the model of write_model has {weights} bytes of weights; make it larger than {2 * _READ_AHEAD}"
        )

    def test_graph_verifies(self, case: ImportCase) -> None:
        """What is built of the model is a valid module."""
        try:
            verify_module(_graph(case), case.installation.ops.by_name())
        except CacheIRError as error:
            raise AssertionError(f"the imported model makes no valid graph: {error}") from error

    def test_numbers(self, case: ImportCase) -> None:
        """The outputs of the graph, by the meaning of its ops, are the other implementation's."""
        module, interpreter = _graph(case), _interpreter(case)
        pairs = self.expected(case.path)
        assert pairs, "expected(path) gives no inputs"
        for number, (inputs, outputs) in enumerate(pairs):
            made = _outputs(case, module, interpreter, inputs)
            wanted = outputs if isinstance(inputs, Mapping) else [outputs]
            assert len(made) == len(wanted), f"the graph has {len(made)} outputs, expected are {len(wanted)}"
            for found, right in zip(made, wanted):
                assert found.shape == np.shape(right), f"an output is {found.shape}, expected is {np.shape(right)}"
                largest = float(np.abs(right).max(initial=0.0))
                apart = float(np.abs(found.astype(np.float64) - right).max(initial=0.0))
                assert apart <= self.tolerance * max(largest, 1e-30), (
                    f"inputs {number}: outputs are off by {apart:.2e} of at most {largest:.2e}"
                )

    def test_damaged_files_are_named(self, case: ImportCase, tmp_path: Path) -> None:
        """A file that was cut short, or of which a header byte was changed, gives a model or a ModelError."""
        for number, damage in enumerate(_damages(case.model)):
            path, root = _copied(case, tmp_path / str(number))
            damage.apply(root)
            try:
                model = _open(self.importer, path, case.installation)
                files = WeightFiles(root, model.sources, case.installation.quant_formats.by_name())
                for name in files.names:
                    files.file(name)
                files.close()
            except ModelError as error:
                assert str(error), f"{damage}: the error has no sentence"
                continue
            except Exception as error:
                raise AssertionError(
                    f"{damage}: {type(error).__name__}: {error}; raise MalformedModelError that names the file and the"
                    " place"
                ) from error
            assert not damage.cuts_weights, f"{damage}: weights are missing and nobody says so"


@dataclass(frozen=True)
class _Damage:
    """``file`` cut to ``length`` bytes, or its byte at ``place`` inverted."""

    file: str
    length: int | None = None
    place: int | None = None
    cuts_weights: bool = False

    def apply(self, root: Path) -> None:
        path = root / self.file
        data = bytearray(path.read_bytes())
        if self.place is not None:
            data[self.place] ^= 0xFF
        path.write_bytes(bytes(data[: self.length]))

    def __str__(self) -> str:
        if self.place is not None:
            return f"byte {self.place} of {self.file} inverted"
        return f"{self.file} cut to {self.length} bytes"


def _damages(model: ImportedModel) -> Iterator[_Damage]:
    """Cuts of every file at its start, within its header, within its weights; a few changed bytes of each header."""
    for name in sorted({*model.files, *(source.file for source in model.sources.values())}):
        size = (model.root / name).stat().st_size
        inside = sorted((s.offset, s.offset + s.nbytes) for s in model.sources.values() if s.file == name)
        first, last = (inside[0][0], inside[-1][1]) if inside else (size, size)
        for length in sorted({0, 1, first // 2, max(0, first - 1)}):
            yield _Damage(name, length=length, cuts_weights=bool(inside))
        if inside:
            yield _Damage(name, length=last - 1, cuts_weights=True)
        for place in sorted({0, min(7, first - 1), first // 3, first // 2, max(0, first - 2)}):
            if 0 <= place < first:
                yield _Damage(name, place=place)


def _open(importer: str, path: Path, installation: Installation) -> ImportedModel:
    return open_model(ModelSource(path, installation.importers[importer], path.name), installation)


def _copied(case: ImportCase, folder: Path) -> tuple[Path, Path]:
    """The model in another folder: what to open, and its root."""
    shutil.copytree(case.model.root, folder / "copy")
    root = folder / "copy"
    return (root if case.path == case.model.root else root / case.path.relative_to(case.model.root)), root


def _invert(path: Path, source: WeightSource) -> None:
    with path.open("r+b") as file:
        file.seek(source.offset)
        data = np.frombuffer(file.read(source.nbytes), np.uint8)
        file.seek(source.offset)
        file.write((~data).tobytes())


def _overlaps(sources: Mapping[str, WeightSource]) -> Iterator[tuple[str, str]]:
    """Pairs of keys that share some of their bytes; two keys of one tensor (a tied head) share all of them."""
    by_place = sorted(sources.items(), key=lambda item: (item[1].file, item[1].offset, item[1].nbytes))
    for (one, first), (other, second) in zip(by_place, by_place[1:]):
        same = (first.file, first.offset, first.nbytes) == (second.file, second.offset, second.nbytes)
        if first.file == second.file and second.offset < first.offset + first.nbytes and not same:
            yield one, other


def _graph(case: ImportCase) -> Module:
    """The logical module of the model."""
    model = case.model
    if model.spec is None:
        assert model.module is not None, "the importer gave neither a DecoderSpec nor a module"
        return with_recipes(model.module, model)
    families = case.installation.families.by_name()
    types, ops = imported_weight_types(model), case.installation.ops.by_name()
    return with_recipes(build_logical(model.spec, types, ops=ops, families=families, limits=_LIMITS), model)


class _FromFiles(Interpreter):
    """Reads weights from the model's files by the places that the importer recorded."""

    files: WeightFiles
    unpackers: Mapping[str, Any]

    def weight(self, graph: Any, name: str, layer: int | None) -> Any:
        return weight_data(graph, name, layer, self.files.array, formats=self.files.formats, unpackers=self.unpackers)


def _interpreter(case: ImportCase) -> _FromFiles:
    made = _FromFiles(case.installation.ops.by_name())
    made.files = WeightFiles(case.model.root, case.model.sources, case.installation.quant_formats.by_name())
    made.unpackers = case.installation.unpackers.by_name()
    return made


def _outputs(case: ImportCase, module: Module, interpreter: _FromFiles, inputs: Any) -> Sequence[Any]:
    if case.model.spec is None:
        main = module.main
        return interpreter.run(module, main, [np.asarray(inputs[value.name]) for value in main.inputs])
    ids = np.array(inputs, np.int32)
    given = {
        "tokens": ids,
        "positions": np.arange(len(ids), dtype=np.int32),
        "row_starts": np.array([0, len(ids)], np.int32),
    }
    (rows,) = interpreter.run(module, module.main, [given[value.name] for value in module.main.inputs])
    return interpreter.run(module, module.graph("head.logits"), [rows])
