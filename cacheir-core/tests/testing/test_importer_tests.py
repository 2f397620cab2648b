"""``ImporterTests``: a good importer passes every check, and each check catches its own culprit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.models.imported import ImportedModel
from cacheir.plugins import ImporterSpec
from cacheir.testing import ImporterTests
from cacheir.testing.hosts import plugin_host
from cacheir.testing.importer_tests import ImportCase, _open

Good = Callable[..., ImportedModel]
_COUNTER = itertools.count()


def good(read: Good, path: Path, options: Any) -> ImportedModel:
    return read(path, options)


def takes_the_time(read: Good, path: Path, options: Any) -> ImportedModel:
    return replace(read(path, options), header_hash=str(next(_COUNTER)))


def hides_its_file(read: Good, path: Path, options: Any) -> ImportedModel:
    return replace(read(path, options), files=())


def names_bytes_twice(read: Good, path: Path, options: Any) -> ImportedModel:
    model = read(path, options)
    between = replace(model.sources["layer0"], offset=model.sources["layer0"].offset + 4)
    return replace(model, sources={**model.sources, "unused": between})


def hashes_weights(read: Good, path: Path, options: Any) -> ImportedModel:
    return replace(read(path, options), notes=(str(sum(path.read_bytes())),))


def reads_weights(read: Good, path: Path, options: Any) -> ImportedModel:
    path.read_bytes()
    return read(path, options)


def declares_an_empty_range(read: Good, path: Path, options: Any) -> ImportedModel:
    model = read(path, options)
    assert model.module is not None
    main = replace(model.module.main, dims=(*model.module.main.dims, ("Z", 5, 1)))
    return replace(model, module=replace(model.module, graphs=(main,)))


def forgets_an_activation(read: Good, path: Path, options: Any) -> ImportedModel:
    model = read(path, options)
    assert model.module is not None
    graph = model.module.main
    first = next(op for op in graph.ops if op.name == "silu")
    ops = tuple(
        replace(op, operands=tuple(first.operands[0] if v == first.result else v for v in op.operands))
        for op in graph.ops
        if op is not first
    )
    return replace(model, module=replace(model.module, graphs=(replace(graph, ops=ops),)))


def raises_what_it_meets(read: Good, path: Path, options: Any) -> ImportedModel:
    from cacheir.errors import MalformedModelError

    try:
        return read(path, options)
    except MalformedModelError as error:
        raise KeyError("sizes") from error


def believes_the_header(read: Good, path: Path, options: Any) -> ImportedModel:
    """Does not look at the end of the file, and names no place of the last matrix."""
    from cacheir.errors import MalformedModelError

    try:
        return read(path, options)
    except MalformedModelError as error:
        if "bytes, its header says" not in str(error):
            raise
        return ImportedModel(root=path.parent, files=(path.name,), importer="x", header_hash="", sources={})


@pytest.fixture
def check(scaffolded: Any, plugin_of: Any, complaints: Any, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``check(run, **fields)``: the complaints about an importer that calls the good one."""
    module = scaffolded("importer")

    def run(wrong: Callable[..., ImportedModel], size: int = 256, **fields: Any) -> dict[str, str]:
        def read(path: Path, options: Any) -> ImportedModel:
            return wrong(module.read, path, options)

        spec = ImporterSpec(
            **{"name": "kit", "summary": "A test.", "run": read, "suffixes": (module.SUFFIX,), **fields}
        )
        plugin_name = plugin_of(cacheir_register_importers=[spec])
        matrices = [np.random.default_rng(0).standard_normal(s).astype("f4") for s in ((size, 96), (96, size), (5, 96))]

        class Checks(ImporterTests):
            plugins = (plugin_name,)
            importer = "kit"

            @classmethod
            def write_model(cls, folder: Path) -> Path:
                module.write(folder / f"net{module.SUFFIX}", matrices)
                return folder / f"net{module.SUFFIX}"

            @classmethod
            def expected(cls, path: Path) -> Any:
                x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32)
                y = x.astype(np.float64)
                for number, matrix in enumerate(matrices):
                    y = (y / (1 + np.exp(-y)) if number else y) @ matrix.T.astype(np.float64)
                return [({"x": x}, [y])]

        folder = tmp_path / "model"
        folder.mkdir()
        host = plugin_host(plugin_name)
        path = Checks.write_model(folder)
        return complaints(Checks(), case=ImportCase(path, _open("kit", path, host), host))

    return run


def test_a_good_importer_passes(check: Any) -> None:
    assert check(good) == {}


@pytest.mark.parametrize(
    ("wrong", "failing", "words"),
    [
        (takes_the_time, {"test_says_the_same_twice", "test_reads_no_weights"}, "another ImportedModel"),
        (hides_its_file, {"test_places_of_tensors_are_true"}, "is not among ImportedModel.files"),
        (names_bytes_twice, {"test_places_of_tensors_are_true"}, "on the same bytes in part"),
        (hashes_weights, {"test_reads_no_weights"}, "depends on the content of weights"),
        (reads_weights, {"test_reads_no_weights"}, "opening reads"),
        (declares_an_empty_range, {"test_graph_verifies"}, "no valid graph"),
        (forgets_an_activation, {"test_numbers"}, "outputs are off by"),
        (raises_what_it_meets, {"test_damaged_files_are_named"}, "KeyError"),
        (believes_the_header, {"test_damaged_files_are_named"}, "nobody says so"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_each_check_catches_its_culprit(check: Any, wrong: Any, failing: set[str], words: str) -> None:
    found = check(wrong)
    assert set(found) == failing
    assert any(words in text for text in found.values()), found


def test_an_importer_that_is_not_picked(check: Any) -> None:
    found = check(good, suffixes=(".other",), sniff=lambda path: "takes .other files")
    assert set(found) == {"test_is_found"}
    assert "correct suffixes, marker_files or sniff" in found["test_is_found"]


def test_a_model_that_is_too_small_to_tell(check: Any) -> None:
    assert set(check(good, size=8)) == {"test_the_test_model_is_large_enough"}
