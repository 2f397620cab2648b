"""Checks an installed example plugin beside cacheir-core alone: found through its entry point, ordered, run.

`python .ci/check_example.py drop-reshape`, with the environment's own Python; prints what it saw, exits 1 on a fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from cacheir.ir.graph import Module
from cacheir.ir.parser import parse_graph
from cacheir.pipeline.choose import choose_passes
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.run import run_pass
from cacheir.plugins.installation import default

# A reshape that changes nothing stands between the input and a sum.
BEFORE = """graph @main {
  dim T in [1, 16]
  input %x: f32[T, 8]
  %y: f32[T, 8] = reshape(%x) {shape = ["T", "8"]}
  %z: f32[T, 8] = add(%y, %x)
  yield %z
}
"""


def command(*arguments: str) -> str:
    """What the installed `cacheir` prints."""
    program = Path(sys.executable).with_name("cacheir")
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cacheir {' '.join(arguments)} failed with {done.returncode}: {done.stderr}")
    return done.stdout


def expect(holds: bool, what: str) -> None:
    """Print a check that holds; end the run at one that does not."""
    if not holds:
        raise SystemExit(f"example plugin: not so: {what}")
    print(f"example plugin: {what}")


def main(name: str) -> None:
    """Check the plugin ``name``, whose one pass has the plugin's name."""
    siblings = {d.metadata["Name"] for d in distributions() if d.metadata["Name"].startswith("cacheir")}
    expect(siblings == {"cacheir-core", f"cacheir-{name}"}, "nothing but cacheir-core is installed beside it")

    listed = {entry["name"]: entry for entry in json.loads(command("plugins", "list", "--json"))["plugins"]}
    expect(listed[name]["state"] == "loaded", f"`cacheir plugins list` shows {name} as loaded")
    order = [place["name"] for place in json.loads(command("passes", "--json"))["order"]]
    expect(name in order, f"`cacheir passes` has {name} at place {order.index(name) + 1 if name in order else None}")
    expect(order.index(name) < order.index("dead-code"), f"{name} stands before dead-code, as it declares")

    installation = default()
    chosen = next(item for item in choose_passes(installation.passes.contributions) if item.spec.name == name)
    context = PassContext(ops=installation.ops.by_name(), pass_name=name)
    module, record = run_pass(chosen, Module("", (parse_graph(BEFORE),)), "main", context, check_text=True)
    ops = [op.name for op in module.graph("main").ops]
    expect(record.outcome == "changed" and ops == ["add"], f"the pass ran and left {ops}: {', '.join(record.notes)}")
    _, again = run_pass(chosen, module, "main", context)
    expect(again.outcome == "unchanged", "a second run finds nothing to do")


if __name__ == "__main__":
    main(sys.argv[1])
