"""The search for R1's kernels of 17 to 32 rows without a GPU: the candidates' launches, and what it finds."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the script measures what runs on it")

from cacheir.ir.types import KVType  # noqa: E402
from cacheir_cuda.chain import rows_tiles  # noqa: E402
from cacheir_cuda.chain.launches import ChainWeights  # noqa: E402
from cacheir_cuda.chain.rows_launches import RowsBuffers, RowsInputs  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

SOURCES = Path(__file__).resolve().parents[2] / "cacheir-cuda" / "cpp"
CPU = torch.device("cpu")
STATIC = {"qkv": 0, "attention": 3072, "output": 128, "gate_up": 256, "down": 128, "head": 4736}  # bytes, by cuobjdump


def chain_of_r1() -> Any:
    bench, models = (importlib.import_module(name) for name in ("rows_bench", "random_models"))
    return bench.chain_of(*models.SHAPES["r1-distill-1.5b"], 2)


def step_of(chain: Any, plan: Any) -> Any:
    class NoWeights:
        def get(self, layout: str, recipes: Any) -> Any:
            return torch.zeros(1)

    pool = Pool(KVType(2, chain.kv_heads, 128, "bf16"), range(2), 3, 16, CPU)
    weights = ChainWeights(chain, NoWeights())  # type: ignore[arg-type]
    buffers = RowsBuffers(chain, CPU, 32)
    return importlib.import_module("rows_candidates").PlannedStep(chain, weights, buffers, pool, plan)


def inputs_of() -> RowsInputs:
    values = torch.zeros(32, dtype=torch.int32)
    return RowsInputs(values, values, values, torch.zeros((32, 2), dtype=torch.int32))


def kernels_of(text: str, macros: str) -> set[str]:
    """The kernels that the lines of ``text`` make of the ``#define``s of ``macros``."""
    defined = re.findall(r"#define (\w+)\(([^)]*)\)((?:.*\\\n)*.*)\n", macros)
    forms = {name: (given.split(", "), re.findall(r"\b(rows_\w*(?:##\w+)+)\(", body)) for name, given, body in defined}
    made = set()
    for name, given in re.findall(r"^(\w+)\(([^)\n]*)\)$", text, re.MULTILINE):
        names, kernels = forms[name]
        assert kernels, f"{name} makes no kernel"
        values = dict(zip(names, given.split(", "), strict=True))
        made |= {"".join(values.get(part, part) for part in kernel.split("##")) for kernel in kernels}
    return made


def test_the_sources_have_each_candidate_and_no_other() -> None:
    search = importlib.import_module("rows_candidates")
    chain = chain_of_r1()
    searched, own = (SOURCES / "rows_searched.cuh").read_text(), (SOURCES / "rows_chain.cu").read_text()
    asked = {
        kernel
        for plans in search.candidates(chain).values()
        for plan in plans
        for kernel in search.named(plan, chain).values()
    }
    assert kernels_of(searched, own + searched) == asked
    assert not asked & rows_tiles.all_kernels()
    kept = own.partition("#ifdef TIMED")[0]
    assert kernels_of(kept, own) | {rows_tiles.BEGIN, rows_tiles.ADVANCE} == rows_tiles.all_kernels()


def test_the_launches_of_every_candidate() -> None:
    search = importlib.import_module("rows_candidates")
    chain = chain_of_r1()
    base = [one.kernel for one in step_of(chain, {}).layers(inputs_of())]
    for name, plans in search.candidates(chain).items():
        for plan in plans:
            assert search.fits_together(plan, chain)
            step = step_of(chain, plan)
            launches = [*step.layers(inputs_of()), step.head(32)]
            wanted = {**dict(zip(search.LAYER, base)), "head": step_of(chain, {}).head(32).kernel}
            wanted |= search.named(plan, chain)
            assert [one.kernel for one in launches] == [wanted[each] for each in search.LAYER * 2] + [wanted["head"]]
            one = launches[search.KERNELS.index(name) if name != "head" else -1]
            assert one.shared_bytes + STATIC[name] <= rows_tiles.SHARED_BYTES and one.threads <= 1024
            squares = [step.squares(each, 32) for each in ("down", "output")]
            assert all(count % rows_tiles.SQUARES_AT_ONCE == 0 and count <= chain.hidden // 4 for count in squares)
            assert [launches[i].arguments.square_count for i in (1, 3)] == squares
            assert launches[1].arguments.qkv == launches[0].arguments.out
            tile = plan[name]
            if isinstance(tile, rows_tiles.ResidualTile):
                assert chain.matrices[name][1] % tile.outputs == 0 and one.blocks % tile.split == 0


class Timer:
    """A layer of 34 us, less where a plan has the kernels of ``gains`` together."""

    def __init__(self, chain: Any, gains: dict[tuple[str, ...], float], wrong: str = "") -> None:
        self.chain, self._gains, self._wrong = chain, gains, wrong
        self._named = importlib.import_module("rows_candidates").named
        self.layers = 0

    def _kernels(self, plan: Any) -> str:
        return " ".join(self._named(plan, self.chain).values())

    def layer_us(self, plan: Any) -> float:
        self.layers += 1
        found = self._kernels(plan)
        return (
            34 + 0.01 * len(plan) - sum(g for words, g in self._gains.items() if all(word in found for word in words))
        )

    def alone_us(self, plan: Any, name: str) -> float:
        if "_s6_w2_n4_" in self._kernels(plan):
            raise RuntimeError("no such kernel")
        return 5.0

    def step_us(self, plan: Any) -> float:
        return 28 * self.layer_us(plan) + 110

    def held(self, plan: Any, name: str) -> dict[str, Any]:
        return {"error": 1e-3, "equal": True, "right": not self._wrong or self._wrong not in self._kernels(plan)}

    def chained(self, plan: Any) -> bool:
        return True


GAINS = {
    ("k1536_t1_w12_s8_c4", "g2_p2_s4_w3_n3_b2_c4"): 1.5,
    ("t3_g2_p4_s6_w3_n3_b1_c4",): 0.6,
    ("s3_c4", "of3"): 0.3,
}


def test_kernels_that_gain_only_together_are_found() -> None:
    search, chain = importlib.import_module("rows_search"), chain_of_r1()
    told: list[dict[str, Any]] = []
    found = search.Search(Timer(chain, GAINS), told.append, lambda: False).run()
    best = found[0]
    assert best["layer_us"] == pytest.approx(34 - 2.4 + 0.05) and best["chained"]
    assert "w12_s8_c4" in best["kernels"]["gate_up"] and "w3_n3" in best["kernels"]["output"]
    assert best["kernels"]["attention"].endswith("of3") and "w3_n3_b1" in best["kernels"]["down"]
    assert found[-1]["kernels"] == {} and found[-1]["layer_us"] == 34
    failed = [row["kernels"] for row in told if "failed" in row]
    assert failed and all("_s6_w2_n4_" in kernels["down"] for kernels in failed)
    every = {str(sorted(plan.items())) for plans in search.candidates(chain).values() for plan in plans}
    assert sum(row["stage"] == "single" for row in told) == len(every)


def test_what_is_wrong_is_told_and_never_taken() -> None:
    search, chain = importlib.import_module("rows_search"), chain_of_r1()
    told: list[dict[str, Any]] = []
    found = search.Search(Timer(chain, GAINS, wrong="t3_g2_p4_s6_w3_n3"), told.append, lambda: False).run()
    assert not any("t3_g2_p4_s6_w3_n3" in str(row["kernels"]) for row in found)
    wrong = [row for row in told if row.get("right") is False]
    assert wrong and all("layer_us" not in row for row in wrong)


def test_what_is_left_out_never_begins() -> None:
    search, chain = importlib.import_module("rows_search"), chain_of_r1()
    told: list[dict[str, Any]] = []
    without = ["rows_residual_k8960_t3_g2_p4_s6_w3_n3_b1_c4", "rows_stream_swiglu_k1536_t1_w12_s9_c4"]
    search.Search(Timer(chain, GAINS), told.append, lambda: len(told) > 400, without).run()
    begun = [kernel for row in told if row["stage"] == "begins" for kernel in row["kernels"].values()]
    assert begun and not set(without) & set(begun)
    assert "rows_residual_k8960_t3_g2_p4_s6_w3_n3_b1_c4_early" in begun


def test_nothing_but_the_last_stage_begins_when_the_time_is_over() -> None:
    search, chain = importlib.import_module("rows_search"), chain_of_r1()
    timer = Timer(chain, GAINS)
    found = search.Search(timer, lambda row: None, lambda: timer.layers > 12).run()
    assert timer.layers < 12 + 3 + (1 + search.FINALS) * (search.TURNS + 2) + search.BASE_EACH
    assert {} in [row["kernels"] for row in found]
