"""Cases E06, E07, E09: the compiled extension on machines that lack something, have an older CPU, or fewer cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from cacheir import Runtime
from cacheir.runtime import opening
from cacheir_importers.tiny import write_tiny
from cacheir_native import probe

pytestmark = pytest.mark.skipif(probe.why_unavailable() is not None, reason=str(probe.why_unavailable()))

QEMU, OBJDUMP = shutil.which("qemu-x86_64"), shutil.which("objdump")
# A process whose extension is another file than the one that was built.
BROKEN = """
import sys
from cacheir_native import probe
probe.EXTENSION = "broken_extension"
from cacheir.cli.main import main
main()
"""
# Products of one weight in a few formats, with f32 and with int8 activations.
PRODUCTS = """
import sys
import numpy as np
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir_native import _cacheir_native as native
random = np.random.default_rng(int(sys.argv[1]))
x, values = random.standard_normal((5, 256), dtype=np.float32), random.standard_normal((48, 256), dtype=np.float32)
parts = [("f32", values, 48, 256)]
for name in ("q4_0", "q4_1", "q8_0"):
    parts.append((name, QuantArray.quantize(values, core_formats()[name]).blocks, 48, 256))
made = [native.PackedMatrix(part, precise=precise).multiply(x) for part in parts for precise in (True, False)]
sys.stdout.buffer.write(np.stack(made).tobytes())
print(native.isa(), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(folder)
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with the extension as an interrupted copy leaves it."""
    from cacheir_native import _cacheir_native as native

    assert native.__file__ is not None
    whole = Path(native.__file__).read_bytes()
    suffix = Path(native.__file__).name.removeprefix("_cacheir_native")
    (tmp_path / f"broken_extension{suffix}").write_bytes(whole[: len(whole) // 3])
    return tmp_path


def run_broken(broken: Path, tiny: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(broken), "CACHEIR_CACHE_DIR": str(broken / "cache")}
    environment |= {"CACHEIR_BACKEND": "auto", **settings}
    command = [sys.executable, "-c", BROKEN, "run", str(tiny), "--prompt", "ab", "--max-new-tokens", "2", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_e06_an_extension_that_cannot_be_loaded_leaves_numpy_and_is_named_once(broken: Path, tiny: Path) -> None:
    ran = run_broken(broken, tiny)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "native" in line]
    assert line.startswith("loading the weights on cpu; ") and "broken_extension" in line and "too short" in line


def test_e06_what_is_forced_is_an_error_there(broken: Path, tiny: Path) -> None:
    for words, settings in ((("--backend", "native"), {}), ((), {"CACHEIR_NATIVE_MATMUL": "force"})):
        ran = run_broken(broken, tiny, *words, **settings)
        assert ran.returncode not in (0, 1) and "Traceback" not in ran.stderr
        assert "error: " in ran.stderr and "broken_extension" in ran.stderr and "hint: " in ran.stderr


@pytest.mark.skipif(OBJDUMP is None, reason="objdump is not installed")
def test_e06_the_extension_needs_nothing_that_a_slim_image_lacks() -> None:
    from cacheir_native import _cacheir_native as native

    assert OBJDUMP is not None and native.__file__ is not None
    said = subprocess.run([OBJDUMP, "-p", native.__file__], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[1].partition(".so")[0] for line in said.splitlines() if "NEEDED" in line}
    assert "libc" in needed
    assert needed <= {"libc", "libm", "libstdc++", "libgcc_s", "libpthread", "ld-linux-x86-64"}


def products(seed: int, *before: str, **settings: str) -> tuple[str, np.ndarray]:
    """The instruction set that a new process takes, and what it computes: f32 [format, (f32, int8), rows, columns]."""
    command = [*before, sys.executable, "-c", PRODUCTS, str(seed)]
    ran = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stderr.decode().split()[-1], np.frombuffer(ran.stdout, np.float32).reshape(4, 2, 5, 48)


def test_e07_instruction_sets_agree() -> None:
    from cacheir_native import _cacheir_native as native

    seed = int(np.random.default_rng().integers(1 << 30))
    _, first = products(seed, CACHEIR_NATIVE_ISA="scalar")
    for name in native.supported_isas():
        taken, made = products(seed, CACHEIR_NATIVE_ISA=name)
        assert taken == name
        np.testing.assert_allclose(made, first, rtol=1e-5, atol=1e-4, err_msg=f"{name}, seed {seed}")


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed")
# QEMU emulates no AVX-512, so its Skylake-Server has AVX2 to offer.
@pytest.mark.parametrize(("cpu", "expected"), [("Nehalem", "scalar"), ("Haswell", "avx2"), ("Skylake-Server", "avx2")])
def test_e07_older_cpus_run_what_they_have(cpu: str, expected: str) -> None:
    assert QEMU is not None
    seed = int(np.random.default_rng().integers(1 << 30))
    taken, made = products(seed, QEMU, "-cpu", cpu)
    assert taken == expected
    np.testing.assert_allclose(made, products(seed)[1], rtol=1e-5, atol=1e-4, err_msg=f"seed {seed}")
    wrong = [
        QEMU,
        "-cpu",
        cpu,
        sys.executable,
        "-c",
        "from cacheir_native.probe import why_unavailable as w; print(w())",
    ]
    environment = {**os.environ, "CACHEIR_NATIVE_ISA": "avx512"}
    said = subprocess.run(wrong, env=environment, capture_output=True, text=True, timeout=500, check=True).stdout
    assert "avx512" in said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of a process")
def test_e09_a_process_that_may_use_one_core_has_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from cacheir.runtime.usable_cores import usable_cores;"
        "from cacheir_native import _cacheir_native as native; print(usable_cores(), native.default_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CACHEIR_THREADS"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "1"]


def test_e09_quotas_limit_every_pool_and_the_users_number_wins(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "usable_cores", lambda: 1)
    monkeypatch.delenv("CACHEIR_THREADS", raising=False)
    with Runtime(tiny, backend="native", max_seq=64) as runtime:
        assert runtime._model.executor._runner.threads == 1
    with Runtime(tiny, backend="cpu", max_seq=64):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {1}
    with Runtime(tiny, backend="native", threads=3, max_seq=64) as runtime:
        assert runtime._model.executor._runner.threads == 3
    monkeypatch.setenv("CACHEIR_THREADS", "2")
    with Runtime(tiny, backend="native", max_seq=64) as runtime:
        assert runtime._model.executor._runner.threads == 2


@pytest.mark.parametrize("text", ["abc", "-1", "1.5"])
def test_e09_a_number_of_threads_that_is_none_is_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    from cacheir.errors import UsageError

    monkeypatch.setenv("CACHEIR_THREADS", text)
    with pytest.raises(UsageError, match="CACHEIR_THREADS must be a whole number"):
        Runtime(tiny, backend="native", max_seq=64)
