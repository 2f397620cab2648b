"""Compares the peak that `cacheir plan` predicts with the peak that is measured, and writes benchmarks/plan_peak.json.

    python benchmarks/plan_peak.py [--model smollm2] [--context 512] [--concurrency 4]

For each CPU backend a child process runs a tiny model, so that everything is imported, notes what is resident, opens
the model, fills every KV page and runs the largest steps. Owned bytes are the executor's account; resident bytes are
VmHWM less what was resident before.
Memory does not depend on what else the machine does, so this needs no quiet one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_suffix(".json")
BACKENDS = ("cpu", "native")
TOKENS = 512  # of a step


def predicted(model: str, backend: str, context: int, concurrency: int, threads: int) -> dict[str, Any]:
    """What `cacheir plan` says."""
    words = ["plan", model, "--backend", backend, "--context", str(context), "--concurrency", str(concurrency)]
    words += ["--max-tokens", str(TOKENS), "--threads", str(threads), "--memory", "1TB", "--json"]
    answer: dict[str, Any] = json.loads(_output(["-m", "cacheir", *words]))
    return answer


def measured(model: str, backend: str, context: int, concurrency: int, threads: int) -> dict[str, Any]:
    """What a child process that does nothing else takes."""
    words = [str(Path(__file__).resolve()), "--child", backend, "--model", model]
    words += ["--context", str(context), "--concurrency", str(concurrency), "--threads", str(threads)]
    answer: dict[str, Any] = json.loads(_output(words))
    return answer


def child(model: str, backend: str, context: int, concurrency: int, threads: int) -> dict[str, Any]:
    """In the child: the executor's account, and the peak beyond what the imports took."""
    from cacheir.artifact.card import CompileOptions
    from cacheir.bench.environment import peak_memory_bytes, resident_memory_bytes
    from cacheir.bench.step_costs import StepShape
    from cacheir.bench.step_probe import fill_pages, probe_step
    from cacheir.plugins.installation import default
    from cacheir.runtime.executor import ExecutorOptions
    from cacheir.runtime.opening import OpenOptions, open_anything

    warm_up(backend)
    imports = resident_memory_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    options = OpenOptions(
        backend=backend,
        compile=CompileOptions(max_seq=context, max_rows=concurrency, max_tokens=TOKENS),
        executor=ExecutorOptions(threads=threads),
        kv_tokens=context * concurrency,
    )
    opened = open_anything(model, options, default(), lambda text: None).model
    executor, program = opened.executor, opened.program
    pages = context * concurrency // options.executor.page_tokens
    fill_pages(executor, program, pages, options.executor.page_tokens)
    for shape in (
        StepShape(mode="prefill", rows=1, tokens=min(TOKENS, context), keys=context),
        StepShape(mode="prefill", rows=concurrency, tokens=TOKENS // concurrency * concurrency, keys=context),
        StepShape(mode="decode", rows=concurrency, tokens=concurrency, keys=context),
        StepShape(mode="decode", rows=1, tokens=1, keys=context),
    ):
        executor.wait(executor.submit(probe_step(shape, len(program.groups), options.executor.page_tokens)))
    use = executor.memory()
    peak = peak_memory_bytes()
    assert imports is not None and peak is not None, "this system does not say how much memory is resident"
    return {"owned": {**vars(use), "total": use.total}, "imports": imports, "resident": peak - imports}


def warm_up(backend: str) -> None:
    """A tiny model from its folder to its first tokens, which imports all that any model needs, and is closed again."""
    import gc

    import tokenizers  # noqa: F401  a tiny model has a tokenizer of its own

    from cacheir import Runtime
    from cacheir_importers.tiny import write_tiny
    from cacheir_importers.tiny_config import TinyShape

    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder) / "tiny", family="llama", seed=None, shape=TinyShape())
        with Runtime(Path(folder) / "tiny", backend) as runtime:
            list(runtime.generate("The same prompt", max_new_tokens=4))
    gc.collect()


def _output(words: list[str]) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Measure each backend, print a line for each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--child", default="")
    given = parser.parse_args()
    what = (given.context, given.concurrency, given.threads)
    if given.child:
        print(json.dumps(child(given.model, given.child, *what)))
        return
    report: dict[str, Any] = {"model": given.model, "context": given.context, "concurrency": given.concurrency}
    for backend in BACKENDS:
        plan, found = predicted(given.model, backend, *what), measured(given.model, backend, *what)
        owned, resident = plan["owned"]["total"], plan["resident_peak"]
        report[backend] = {
            "predicted": {"owned": plan["owned"], "resident": resident},
            "measured": found,
            "owned_error": owned / found["owned"]["total"] - 1,
            "resident_error": resident / found["resident"] - 1,
        }
        print(
            f"{backend}: owned {owned / 1e6:.1f} MB predicted, {found['owned']['total'] / 1e6:.1f} MB measured; "
            f"resident {resident / 1e6:.1f} MB predicted, {found['resident'] / 1e6:.1f} MB measured"
        )
    given.output.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
