"""The CUDA C++ kernels for several rows on a processor, beside float64: python emulate.py [KERNEL...]

Streams, residual products and QKV in parts of ``rows_chain.cu`` and ``rows_searched.cuh`` whose names hold one of the
words KERNEL (all: 2 minutes). Their sources are compiled as they are, by g++, but for the GPU's own instructions, which
``device.h`` stands for; so indices, barriers, rings and what waits for what are seen, but no time and no memory model.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "cacheir-cuda" / "cpp"
COMPILE = ["g++", "-O1", "-std=c++17", "-fpermissive", "-w"]
# A macro's name and parameters; the kernel that it makes; the function that is its body, and the arguments of that.
MACRO = re.compile(
    r"^#define (\w+)\(([^)]*)\) *\\\n(?:.*\\\n)*? +(rows_\w+##[\w#]+)\((?:.*\\\n)*?"
    r" +(rows_stream|rows_residual|rows_parts)<(.*)>\(a\);",
    re.MULTILINE,
)
ASM = re.compile(r"asm volatile\((?:[^;]|;(?!\n))*?\);(?=\s*(?://|\n|$|\}))")
OPERAND = r'"{}"\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)'


def cases(words: Sequence[str]) -> list[tuple[str, str]]:
    """(Name, call) of each kernel with one of ``words`` in its name, as the macros of the sources make them."""
    text = "".join((SOURCES / name).read_text() for name in ("rows_chain.cu", "rows_searched.cuh"))
    made = []
    for macro, names, kernel, body, arguments in MACRO.findall(text):
        for line in re.findall(rf"^{macro}\(([^)\n]*)\)$", text, re.MULTILINE):
            given = dict(zip(names.split(", "), line.split(", "), strict=True))
            if given.get("EPILOGUE", "swiglu") == "swiglu" and given.get("TOGETHER", "1") == "1":
                made.append((_filled(kernel, given), f"{body}_case<{_filled(arguments, given)}>"))
    return [(name, call) for name, call in made if not words or any(word in name for word in words)]


def _filled(text: str, given: Mapping[str, str]) -> str:
    """``text`` of a macro with its parameters' values."""
    return "".join(given.get(part, part) for part in re.split(r"(?:##|\b)", text))


def on_a_processor(statement: str) -> str:
    """What ``device.h`` has for an instruction of the GPU's own."""

    def operand(kind: str, at: int) -> str:
        return re.findall(OPERAND.format(kind), statement)[at]

    if "commit_group" in statement:
        return "close_group();"
    if "cp.async.wait_all" in statement:
        return "await_copies();"
    if "cp.async.wait_group" in statement:
        return f"await_groups({operand('n', 0)});"
    if "bar.sync" in statement:
        return f"named_barrier({operand('r', 0)}, {operand('n', 0)});"
    if "cp.async.cg" in statement:
        return f"copy_rows({operand('r', 0)}, {operand('l', 0)});"
    if statement.startswith('asm volatile("" :'):
        return ";"
    raise SystemExit(f"device.h has nothing for {statement!r}")


def kernels() -> str:
    """The kernels' sources for a processor."""
    product = (SOURCES / "rows_product.cuh").read_text()

    def between(begin: str, end: str) -> str:
        start = product.index(begin)
        return product[start : product.index(end, start)]

    text = between("struct RowsProductArguments", "// The blocks are dealt")
    text += between("// 1 / the root of the mean square", "// ROW_TILES: eighths")
    for name in ("rows_stream.cuh", "rows_residual.cuh", "rows_parts.cuh"):
        text += re.sub(r"#(include|pragma once).*", "", (SOURCES / name).read_text())
    text = text.replace(
        "extern __shared__ __align__(128) char held[];", "char *const held = blocks[now->block].shared;"
    )
    variables = iter(range(1000))

    def variable(found: re.Match[str]) -> str:
        number = next(variables)
        kind = f"Shared{number}"
        return f"using {kind} = {found[1]}{found[3]}; {kind} &{found[2]} = static_shared<{kind}>({number});"

    text = re.sub(r"__shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)((?:\[[^\]]*\])*);", variable, text)
    text = ASM.sub(lambda found: on_a_processor(found[0]), text)
    return '#include "device.h"\ninline void bring_pages(const struct RowsProductArguments &) {}\n' + text


def run(words: Sequence[str] = (), change: tuple[str, str] = ("", "")) -> str:
    """What the cases tell, each with copies that land at once and late; ``change`` replaces a part of the sources."""
    listed, source = cases(words), kernels()
    assert listed, f"no kernel has one of {words} in its name"
    assert change[0] in source, f"the sources have no {change[0]!r}"
    source = source.replace(change[0], change[1], 1) if change[0] else source
    calls = "\n".join(
        f'  for (int late = 0; late < 2; late++) LATE = late, random_bits.seed(7), {call}("{name}");'
        for name, call in listed
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "kernels.h").write_text(source)
        (folder / "main.cpp").write_text(f'#include "cases.h"\nint main() {{\n{calls}\n}}\n')
        program = str(folder / "emulated")
        subprocess.run([*COMPILE, f"-I{folder}", f"-I{HERE}", "-o", program, str(folder / "main.cpp")], check=True)
        return subprocess.run([program], check=False, capture_output=True, text=True).stdout


if __name__ == "__main__":
    told = run(sys.argv[1:])
    print(told, end="")
    sys.exit("WRONG" in told)
