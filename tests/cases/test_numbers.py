"""Numbers and batches from bug reports: values that are not finite, neighbours, ties, far positions (C01 to C13)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import gguf_twin, logits_by_eight, runnable, write_rigged
from safetensors.numpy import load_file, save_file

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.cli.main import run
from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.interpreter import evaluate
from cacheir_cpu.kernels.rotary import rope_table as cpu_rope_table
from cacheir_importers.gguf.writer import TensorData, write_gguf
from cacheir_importers.tiny import write_tiny

BACKENDS = ["cpu", "native"]
PAGE, PAGES_A_ROW = 16, 8


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return runnable(request.param)


def opened(path: Path, backend: str, **options: Any) -> Runtime:
    """Open with kernels in float32, as tests of results on more than one backend want them."""
    return Runtime(path, backend, compile_options=CompileOptions(target=backend, precise=True), **options)


# --- C01 ----------------------------------------------------------------------------------------


def damaged(folder: Path, change: Callable[[dict[str, Any]], None], **more: Any) -> Path:
    write_tiny(folder, **more)
    tensors: dict[str, Any] = {name: value.copy() for name, value in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_c01_what_overflows_half_precision_is_fine_in_float32(tmp_path: Path, backend: str) -> None:
    """A residual of 7e4, which float16 does not have: logits are finite, and transformers'."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def grow(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"] *= 4e5

    path = damaged(tmp_path / "model", grow)
    ids = [5, 9, 200, 31, 7]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_hidden_states=True)
    assert found.hidden_states[1].abs().max() > 7e4
    with opened(path, backend) as runtime, runtime.session() as session:
        session.append(ids)
        logits = session.logits()
    assert np.isfinite(logits).all()
    expected = found.logits[0, -1].numpy()
    assert np.abs(logits - expected).max() <= 1e-3
    assert logits.argmax() == expected.argmax()


FAULTS: dict[str, tuple[str, float]] = {
    "a NaN in a norm": ("model.norm.weight", np.nan),
    "an infinity": ("model.layers.0.self_attn.o_proj.weight", np.inf),
    "a NaN in the head": ("lm_head.weight", np.nan),
}


@pytest.mark.parametrize("name", FAULTS)
def test_c01_a_number_that_is_not_finite_is_an_error_and_never_token_0(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    tensor, value = FAULTS[name]

    def spoil(tensors: dict[str, Any]) -> None:
        tensors[tensor].reshape(-1)[3] = value

    path = damaged(tmp_path / "model", spoil)
    for more in ((), ("--temperature", "1", "--seed", "1")):
        capsys.readouterr()
        code = run(["run", str(path), "--backend", backend, "--prompt", "Hello", "--max-new-tokens", "4", *more])
        said = capsys.readouterr()
        assert code == 9 and said.out.strip() == ""
        assert "not finite" in said.err and "Traceback" not in said.err


def test_c01_a_scale_that_is_infinite_in_quantised_blocks(
    tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path / "model")
    metadata, tensors = gguf_twin(tmp_path / "model", quantise="Q8_0")
    held = tensors["blk.1.ffn_down.weight"]
    tensors["blk.1.ffn_down.weight"] = TensorData(held.type, held.shape, b"\x00\x7c" + held.data[2:])
    write_gguf(tmp_path / "a.gguf", metadata, tensors)
    with opened(tmp_path / "a.gguf", backend) as runtime, pytest.raises(Exception, match="not finite"):
        list(runtime.generate_ids([5, 6, 7], 4))


@pytest.mark.parametrize("name", ["greedy_token", "head_argmax"])
def test_c01_rows_of_nan_and_rows_with_one(name: str) -> None:
    logits = np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)
    logits[1], logits[2, 17] = np.nan, np.nan
    if name == "greedy_token":
        found = evaluate(name, logits)
    else:
        rows = np.eye(3, 8, dtype=np.float32)
        rows[1], rows[2, 5] = np.nan, np.nan
        weight = np.zeros((40, 8), np.float32)
        weight[:, 0] = logits[0]
        found = evaluate(name, rows, weight)
    assert found.tolist() == [int(logits[0].argmax()), -1, -1]


# --- batches ------------------------------------------------------------------------------------


class Batch:
    """Steps of several rows on the executor of an open model, each row on pages of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self.executor: Any = runtime._model.runner._executor
        self.positions: dict[int, int] = {}

    def step(self, rows: Sequence[tuple[int, Sequence[int]]], want: str = "logits") -> list[RowOutput]:
        """One step; a row is its slot and the tokens that follow what it was fed before."""
        made = []
        for slot, tokens in rows:
            position = self.positions.get(slot, 0)
            pages = tuple(range(slot * PAGES_A_ROW, (slot + 1) * PAGES_A_ROW))
            made.append(
                Row(
                    slot=slot,
                    tokens=tuple(tokens),
                    position=position,
                    pages=(pages,),
                    want=want,
                    sampling=SamplingParams(),
                )
            )
            self.positions[slot] = position + len(tokens)
        mode = "decode" if all(len(tokens) == 1 for _, tokens in rows) else "prefill"
        return list(self.executor.wait(self.executor.submit(Step(mode=mode, rows=tuple(made)))).rows)

    def forget(self) -> None:
        """Begin anew on the same pages."""
        self.positions.clear()

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[np.ndarray], list[list[int]]]:
        """The prompts' last logits in one batch, and ``count`` tokens each, decoded together."""
        self.forget()
        last = [row.logits[-1] for row in self.step(list(enumerate(prompts)))]  # type: ignore[index]
        answers = [[int(row.argmax())] for row in last]
        for _ in range(count - 1):
            rows = self.step([(slot, [answer[-1]]) for slot, answer in enumerate(answers)])
            for answer, row in zip(answers, rows):
                answer.append(int(row.logits[-1].argmax()))  # type: ignore[index]
        return last, answers


@pytest.fixture
def batch(tiny_folder: Path, tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> Iterator[Batch]:
    invariant = getattr(request, "param", False)
    shutil.copytree(tiny_folder, tmp_path / "model")
    logits_by_eight(tmp_path / "model")
    with opened(tmp_path / "model", backend, batch_invariant=invariant, kv_tokens=8 * PAGE * PAGES_A_ROW) as runtime:
        yield Batch(runtime)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [3 + (index * index * 7 + 11 * seed + index) % 280 for index in range(length)]


@pytest.mark.parametrize("batch", [False, True], ids=["", "batch-invariant"], indirect=True)
def test_c02_a_row_does_not_see_its_neighbours(batch: Batch, request: pytest.FixtureRequest) -> None:
    """Rows are ragged: there is no padding and no inactive slot. Prompts of 1, 3, 17 and 64, 63 or 2 tokens."""
    invariant = "batch-invariant" in request.node.name
    alone = {length: batch.greedy([prompt(length)], 8) for length in (1, 3, 17, 64, 63, 2)}
    for other in (64, 63, 2):
        lengths = (1, 3, 17, other)
        logits, answers = batch.greedy([prompt(length) for length in lengths], 8)
        for length, row, answer in zip(lengths, logits, answers):
            (expected,), (tokens,) = alone[length]
            assert np.isfinite(row).all()
            assert np.abs(row - expected).max() <= min(1e-5, 1e-6 * np.abs(expected).max())
            assert answer == tokens
            if invariant:
                np.testing.assert_array_equal(row, expected)


def test_c03_greedy_answers_do_not_hang_on_company(batch: Batch) -> None:
    """Alone, four times, beside three others, and beside others that join five steps later."""
    mine, others = prompt(9), [prompt(length, seed=length) for length in (3, 17, 30)]
    _, (expected,) = batch.greedy([mine], 12)
    assert batch.greedy([mine] * 4, 12)[1] == [expected] * 4
    assert batch.greedy([mine, *others], 12)[1][0] == expected
    batch.forget()
    (row,) = batch.step([(0, mine)])
    answer = [int(row.logits[-1].argmax())]  # type: ignore[index]
    for number in range(11):
        rows: list[tuple[int, Sequence[int]]] = [(0, [answer[-1]])]
        if number == 5:
            rows += [(slot + 1, other) for slot, other in enumerate(others)]
        elif number > 5:
            rows += [(slot + 1, [7]) for slot in range(3)]
        answer.append(int(batch.step(rows)[0].logits[-1].argmax()))  # type: ignore[index]
    assert answer == expected


WAYS = {
    "fused": CompileOptions(),
    "unfused": CompileOptions(skip_passes=("fuse-head-argmax",)),
    "by meaning": CompileOptions(kernels={"head_argmax": "reference"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_c03_of_equal_logits_the_lowest_id_wins(tmp_path: Path, backend: str, way: str) -> None:
    """Ids 7 and 9, and 7 and 299 at the other end of the vocabulary: the same row of the head."""
    from dataclasses import replace

    write_rigged(tmp_path / "model", {50: 7})
    tensors: dict[str, Any] = {k: v.copy() for k, v in load_file(tmp_path / "model" / "model.safetensors").items()}
    for twin in (9, 299):
        tensors["lm_head.weight"][twin] = tensors["lm_head.weight"][7]
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    options = replace(WAYS[way], target=backend, precise=True)
    with Runtime(tmp_path / "model", backend, compile_options=options) as runtime:
        with runtime.session() as session:
            session.append([50])
            logits = session.logits()
            assert logits[7] == logits[9] == logits[299] == logits.max()
        assert list(runtime.generate_ids([50], 1, ignore_eos=True)) == [7]
        assert list(runtime.generate_ids([4, 50], 1, ignore_eos=True, temperature=0.0, seed=5)) == [7]


# --- C13 ----------------------------------------------------------------------------------------

FAR = np.array([2049, 4097, 32767, 131071], np.int32)


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("kernel", ["reference", "cpu", "torch"])
def test_c13_angles_are_those_of_float32_far_out(kernel: str, theta: float) -> None:
    torch = pytest.importorskip("torch")
    dims = 64
    positions = np.concatenate([FAR, FAR - 1]).astype(np.int32)
    if kernel == "cpu":
        cos, sin = np.empty((8, 32), np.float32), np.empty((8, 32), np.float32)
        cpu_rope_table(positions, theta=theta, dims=dims, factors=(), magnitude=1.0, out=(cos, sin))
    elif kernel == "torch":
        from cacheir_cuda.kernels.rotary import rope_table as torch_rope_table

        tables = torch.empty(8, 32), torch.empty(8, 32)
        torch_rope_table(torch.from_numpy(positions), theta=theta, dims=dims, factors=(), magnitude=1.0, out=tables)
        cos, sin = (table.numpy() for table in tables)
    else:
        cos, sin = evaluate("rope_table", positions, theta=theta, dims=dims)
    frequency = 1.0 / theta ** (torch.arange(0, dims, 2, dtype=torch.int64).float() / dims)
    angle = torch.from_numpy(positions)[:, None].float() * frequency
    assert np.abs(cos - angle.cos().numpy()).max() <= 2e-6
    assert np.abs(sin - angle.sin().numpy()).max() <= 2e-6
    exact = positions[:, None] * theta ** (-2.0 * np.arange(dims // 2) / dims)
    grows = 3e-7 * positions[:, None] * theta ** (-2.0 * np.arange(dims // 2) / dims) + 1e-6
    assert (np.abs(cos - np.cos(exact)) <= grows).all() and grows.max() < 0.05
    assert (cos[:4] != cos[4:]).any(1).all()  # in half precision 2049 is 2048


def test_c13_a_window_far_out_gives_the_logits_of_its_beginning(tmp_path: Path, backend: str) -> None:
    """Rotation is relative: 16 tokens up to position 131071, behind a window of 8, answer nearly as from 0 on."""
    write_tiny(tmp_path / "model", family="mistral", changes={"sliding_window": 8, "max_position_embeddings": 1 << 17})
    tokens = tuple(prompt(16))
    made = []
    with opened(tmp_path / "model", backend, max_seq=1 << 17) as runtime:
        executor: Any = runtime._model.runner._executor
        for position in (0, 2049, 32752, (1 << 17) - 16):
            before = [0] * max(0, position // PAGE - 1)  # what lies before the window is not read
            pages = ((*before, 1, 2, 3)[: (1 << 17) // PAGE],)
            row = Row(slot=0, tokens=tokens, position=position, pages=pages, want="logits", sampling=SamplingParams())
            (found,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
            made.append(found.logits[-1])
    for far, allowed in zip(made[1:], (1e-3, 1e-2, 5e-2)):
        assert np.abs(far - made[0]).max() <= allowed
        assert far.argmax() == made[0].argmax()
