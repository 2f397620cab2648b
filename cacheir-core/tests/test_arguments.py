"""Public functions take a value of the wrong Python type for what it is: a UsageError with the argument's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cacheir import Runtime, compile_model, run_module
from cacheir.arguments import checked_count, checked_options, checked_pairs, checked_place, checked_strings
from cacheir.compile import open_program
from cacheir.errors import CacheIRError, UsageError
from cacheir.testing import plugin_host


@pytest.mark.parametrize("model", [None, 3, b"folder", ["folder"], object(), 1.5, {}])
def test_what_is_no_model(model: Any) -> None:
    host = plugin_host()
    for call in (
        lambda: compile_model(model, installation=host),
        lambda: open_program(model, installation=host),
        lambda: run_module(model, {}, installation=host),
        lambda: Runtime(model, installation=host),
    ):
        with pytest.raises(UsageError, match="model must be a path or a name, not"):
            call()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": 3}, "target must be a string, not 3"),
        ({"target": None}, "target must be a string"),
        ({"quant": 4}, "quant must be a string"),
        ({"mode": "prefill"}, "mode must be a list of strings, not 'prefill'"),
        ({"mode": 1}, "mode must be a list of strings"),
        ({"mode": ["prefill", 2]}, r"mode\[1\] must be a string, not 2"),
        ({"max_seq": "128"}, "max_seq must be an integer"),
        ({"max_rows": True}, "max_rows must be an integer"),
        ({"max_tokens": 1.5}, "max_tokens must be an integer"),
        ({"passes": "fuse-qkv"}, "passes must be a list of strings"),
        ({"skip_passes": {"a": "b"}}, "skip_passes must be a list of strings"),
        ({"kernels": ["linear"]}, "kernels must be a dictionary"),
        ({"kernels": {"linear": 5}}, r"kernels\['linear'\] must be a string"),
        ({"precise": "yes"}, "precise must be True or False"),
        ({"batch_invariant": 1}, "batch_invariant must be True or False"),
        ({"strict": None}, "strict must be True or False"),
        ({"output": 5}, "output must be a path"),
    ],
)
def test_compile_model(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "model.none").write_text("")
    with pytest.raises(UsageError, match=words):
        compile_model(tmp_path / "model.none", installation=plugin_host(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": 3}, "backend must be a string"),
        ({"max_seq": "8"}, "max_seq must be an integer of at least 0"),
        ({"threads": "2"}, "threads must be"),
        ({"threads": -1}, "threads must be"),
        ({"batch_invariant": "no"}, "batch_invariant must be True or False"),
        ({"page_tokens": None}, "page_tokens must be an integer"),
        ({"kv_tokens": 1.0}, "kv_tokens must be an integer"),
        ({"kv_dtype": None}, "kv_dtype must be a string"),
        ({"chunk_tokens": "a"}, "chunk_tokens must be an integer"),
        ({"unfuse": "product"}, "unfuse must be a list of strings, not 'product'"),
        ({"compile_options": {"target": "cpu"}}, "compile_options must be a CompileOptions"),
    ],
)
def test_runtime(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        Runtime(tmp_path, installation=plugin_host(), **arguments)


@pytest.mark.parametrize("inputs", [None, 5, "x", b"x", object()])
def test_inputs_of_a_plain_graph(inputs: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inputs must be a dictionary or a list of arrays"):
        run_module(tmp_path, inputs, installation=plugin_host())


def test_options_of_open_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="options must be a CompileOptions, not"):
        open_program(tmp_path, {"target": "cpu"}, installation=plugin_host())  # type: ignore[arg-type]


def test_what_is_right_is_given_back(tmp_path: Path) -> None:
    assert checked_place("model", tmp_path) == tmp_path
    assert checked_strings("passes", (name for name in ("a", "b"))) == ("a", "b")
    assert checked_pairs("kernels", {}) == {}
    assert checked_count("n", 0) == 0


def test_long_values_are_cut() -> None:
    with pytest.raises(CacheIRError) as caught:
        checked_count("n", "x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("given", [["pin"], "pin", 3, {3: True}])
def test_options_of_a_backend_are_a_dictionary_with_names(given: Any) -> None:
    with pytest.raises(UsageError, match=r"backend_options must be a (dictionary|string), not"):
        Runtime("no-such-model", backend_options=given)
    assert checked_options("backend_options", None) == {}
    assert checked_options("backend_options", {"pin": True}) == {"pin": True}
