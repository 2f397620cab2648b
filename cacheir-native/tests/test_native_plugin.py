"""The native plugin: its backend, the probe's reasons, and that asking for them loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cacheir.errors import BackendUnavailable, UsageError
from cacheir.plugins import resolve
from cacheir.plugins.backend_options import check_backend_options
from cacheir.plugins.ref import is_reference
from cacheir.runtime.executor import ExecutorOptions
from cacheir_native import kernel_table, plugin, probe

built = pytest.mark.skipif(probe.why_unavailable() is not None, reason=str(probe.why_unavailable()))


def test_probe_names_the_extension_that_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EXTENSION", "cacheir_native._missing")
    assert "cacheir_native._missing is not built" in str(probe.why_unavailable())
    assert probe.instruction_set() == ""


@built
def test_a_file_that_ends_before_its_segments_is_never_loaded(tmp_path: Path) -> None:
    from cacheir_native import _cacheir_native as native

    assert native.__file__ is not None
    whole = Path(native.__file__).read_bytes()
    assert not probe.is_cut_short(native.__file__)
    for length in (0, 63, 64, 500, len(whole) // 2):
        part = tmp_path / "part.so"
        part.write_bytes(whole[:length])
        assert probe.is_cut_short(str(part))
    part.write_bytes(b"no ELF file at all".ljust(100))  # the loader says what it is
    assert not probe.is_cut_short(str(part))


def test_opening_the_backend_raises_the_probes_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EXTENSION", "cacheir_native._missing")
    (backend,) = plugin.cacheir_register_backends()
    with pytest.raises(BackendUnavailable, match="is not built") as caught:
        resolve(backend.executor)(ExecutorOptions())
    assert caught.value.hint


@built
def test_an_unknown_instruction_set_is_the_probes_reason() -> None:
    code = "from cacheir_native.probe import why_unavailable; print(why_unavailable())"
    environment = {"CACHEIR_NATIVE_ISA": "sse9", "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert "sse9" in said.stdout


@built
@pytest.mark.parametrize("page_tokens", [1, 3, 24])
def test_pages_that_the_runner_has_not_are_refused(page_tokens: int) -> None:
    (backend,) = plugin.cacheir_register_backends()
    with pytest.raises(UsageError, match=f"no KV pages of {page_tokens} tokens"):
        resolve(backend.executor)(ExecutorOptions(page_tokens=page_tokens))


@built
def test_a_kv_format_that_the_runner_has_not_is_refused() -> None:
    (backend,) = plugin.cacheir_register_backends()
    with pytest.raises(UsageError, match="fp8"):
        resolve(backend.executor)(ExecutorOptions(kv_dtype="fp8"))


def test_references_of_the_records_resolve() -> None:
    (backend,) = plugin.cacheir_register_backends()
    assert backend.name == "native"
    assert resolve(backend.probe) is probe.why_unavailable
    for kernel in kernel_table.native_kernels():
        assert kernel.target in backend.targets
        assert isinstance(kernel.entry, str) and is_reference(kernel.entry) and callable(resolve(kernel.entry))
        assert callable(resolve(kernel.refuses))


def test_threads_can_be_tied_and_only_by_true_or_false() -> None:
    (backend,) = plugin.cacheir_register_backends()
    check_backend_options(backend, {"pin": True})
    with pytest.raises(UsageError, match="neither true nor false"):
        check_backend_options(backend, {"pin": "yes"})


def test_precise_programs_find_a_kernel_for_each_op() -> None:
    kernels = list(kernel_table.native_kernels())
    assert {kernel.op for kernel in kernels} == {kernel.op for kernel in kernels if kernel.numerics == "f32"}
    assert all(kernel.row_order == "fixed" for kernel in kernels)


def test_asking_twice_gives_equal_records() -> None:
    assert list(plugin.cacheir_register_backends()) == list(plugin.cacheir_register_backends())
    assert list(plugin.cacheir_register_kernels()) == list(plugin.cacheir_register_kernels())


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import sys, cacheir_native.plugin as p; p.cacheir_register_kernels(); p.cacheir_register_backends(); "
        "from cacheir_native.probe import why_unavailable; why_unavailable(); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "cacheir_native" in loaded
    assert not {"numpy", "torch", "triton", "typer", "jinja2"} & set(loaded)
