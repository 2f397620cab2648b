"""Reads before the wait: every graph of every choice is in order, and one that is not is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.errors import BackendError  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir_cuda.chain import early_reads, rows_tiles, tiles  # noqa: E402
from cacheir_cuda.chain.early_reads import checked  # noqa: E402
from cacheir_cuda.chain.launches import ChainBuffers, ChainStep, ChainWeights, KernelLaunch  # noqa: E402
from cacheir_cuda.chain.recognise import Chain  # noqa: E402
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs, RowsStep  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402
from cacheir_cuda.row_stops import STOP_WORDS  # noqa: E402

CPU = torch.device("cpu")
SHAPES = {  # hidden, feed-forward, heads and KV heads; those of 7B and 8B have no kernels of several rows
    "qwen3-0.6b": (1024, 3072, 16, 8), "qwen3-1.7b": (2048, 6144, 16, 8), "r1-distill-1.5b": (1536, 8960, 12, 2),
    "qwen2.5-7b": (3584, 18944, 28, 4), "llama-3.1-8b": (4096, 14336, 32, 8),
}  # fmt: skip
NORMED = ("qwen3-0.6b", "qwen3-1.7b")


class EachItsOwn:
    """Residents: an empty tensor of its own for each weight, the same one when it is asked for again."""

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}

    def get(self, layout: str, recipes: Any) -> Any:
        return self.made.setdefault((layout, tuple(recipes)), torch.zeros(1))


def chain_of(qwen_chain: Chain, name: str) -> Chain:
    """The chain of this shape; each layer has weights of its own."""
    hidden, inner, heads, kv_heads = SHAPES[name]
    names = ("norm", "output", "feed_forward_norm", "down")
    layers = []
    for layer in qwen_chain.layers:
        own = {field: f"{layer.number}.{field}" for field in names}
        norms = {"q_norm": f"{layer.number}.q", "k_norm": f"{layer.number}.k"} if name in NORMED else {}
        norms = norms or {"q_norm": "", "k_norm": ""}
        parts = {"qkv": tuple(f"{layer.number}.{part}" for part in "qkv"), "gate_up": (f"{layer.number}.g", "u")}
        layers.append(replace(layer, **own, **norms, **parts))
    return replace(
        qwen_chain, hidden=hidden, feed_forward=inner, heads=heads, kv_heads=kv_heads, layers=tuple(layers),
        vocabulary=151936,
    )  # fmt: skip


def pool_of(chain: Chain) -> Pool:
    return Pool(KVType(4, chain.kv_heads, 128, "bf16"), range(4), 3, tiles.GROUP_TOKENS, CPU)


def one_row(chain: Chain, steps: int) -> list[KernelLaunch]:
    """A graph of ``steps`` steps of one row."""
    buffers = ChainBuffers(chain, CPU, 32, tiles.GROUP_TOKENS)
    step = ChainStep(chain, ChainWeights(chain, EachItsOwn()), buffers, pool_of(chain))  # type: ignore[arg-type]
    return [launch for number in range(steps) for launch in step.step(number, steps)]


def several_rows(chain: Chain, count: int, steps: int, prompt: bool = False) -> list[KernelLaunch]:
    """A graph of ``steps`` steps of ``count`` rows, or of a prompt of as many tokens."""

    def ints(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int32)

    starts = ints(2) if prompt else None
    inputs = RowsInputs(ints(count), ints(count), ints(count), ints(1 if prompt else count, 2), starts)
    step = RowsStep(
        chain, ChainWeights(chain, EachItsOwn()), RowsBuffers(chain, CPU, 32), pool_of(chain)  # type: ignore[arg-type]
    )  # fmt: skip
    ring, produced, stops = ints(steps, count), ints(count), None if prompt else ints(count, STOP_WORDS)
    made = [step.begin(inputs)] if prompt else []
    for number in range(steps):
        made += [*step.layers(inputs, number), step.head(count)]
        made.append(step.advance(inputs, ring, produced, number, 0 if prompt else steps, stops))
    return made


@pytest.fixture
def chain(qwen_chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Chain:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return qwen_chain


@pytest.mark.parametrize("name", SHAPES)
def test_every_graph_of_one_row_is_in_order(name: str, chain: Chain) -> None:
    for steps in (1, 2, 16):
        launches = one_row(chain_of(chain, name), steps)
        assert len(checked(launches)) == steps * (5 * 4 + 2)


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-1.7b", "r1-distill-1.5b"])
def test_every_graph_of_several_rows_is_in_order(name: str, chain: Chain) -> None:
    shape = chain_of(chain, name)
    for count in (2, 4, *rows_tiles.BUCKETS):
        for steps in (1, 8):
            assert len(checked(several_rows(shape, count, steps))) == steps * (5 * 4 + 2)
    for count in rows_tiles.BUCKETS:
        assert len(checked(several_rows(shape, count, 1, prompt=True))) == 1 + 6 * 4 + 2


def broken(launches: Sequence[KernelLaunch], reader: int, field: str, writer: int, written: str) -> list[KernelLaunch]:
    """The launches, of which ``reader`` reads early what ``writer`` writes."""
    setattr(launches[reader].arguments, field, getattr(launches[writer].arguments, written))
    return list(launches)


def test_what_is_read_too_early_is_named(chain: Chain) -> None:
    with pytest.raises(BackendError, match=r"kernel 3 of a graph, .* reads gain before it waits, which kernel 0, "):
        checked(broken(one_row(chain, 1), 3, "gain", 0, "out"))
    with pytest.raises(BackendError, match=r"kernel 4 of a graph, .* reads positions before it waits, which kernel 2"):
        checked(broken(several_rows(chain, 8, 1), 4, "positions", 2, "next"))
    twice = [*one_row(chain, 1), *one_row(chain, 1)]
    twice[22].arguments.state = twice[21].arguments.state  # a step behind the one that moved the state on
    with pytest.raises(BackendError, match=r"kernel 22 of a graph, .* reads state before it waits, which kernel 21, "):
        checked(twice)


def test_a_page_is_read_a_whole_step_after_it_was_written(chain: Chain) -> None:
    launches = one_row(chain, 2)
    first, second = (launches[at] for at in (1, 1 + 5 * 4 + 2))
    assert first.arguments.pages == second.arguments.pages
    with pytest.raises(BackendError, match="reads pages before it waits"):
        checked([first, *launches[2:20], second])


def test_each_structure_is_classed(chain: Chain) -> None:
    """Every pointer is read early, read behind the wait, or written: a new one must be put in its place."""
    behind = {
        "Product": {"row", "squares", "residual", "pages"}, "Attention": {"qkv", "stopped"},
        "Advance": {"best", "best_id", "embedding", "gain"}, "RowsProduct": {"rows", "squares", "residual", "pages"},
        "RowsAttention": {"qkv", "squares"}, "RowsBegin": {"tokens", "embedding", "gain"},
        "RowsHead": {"rows", "squares"}, "RowsAdvance": {"best", "best_id", "page_table", "positions"},
    }  # fmt: skip
    assert early_reads.EARLY.keys() == early_reads.WRITTEN.keys()
    for kind, early in early_reads.EARLY.items():
        pointers = {name for name, type_ in kind._fields_ if type_.__name__ in ("c_void_p", "RowsBegin")}  # type: ignore[misc]
        assert pointers == {*early, *early_reads.WRITTEN[kind], *behind[kind.__name__]}
