"""Joins instructions that the runner can do in one: norms into products, residuals, keys and values into the pool."""

from __future__ import annotations

from cacheir_native.code import Buffer, Code, HostCall, Instruction, reads_of, writes_of

_PRODUCTS = ("linear", "qkv", "swiglu", "head_argmax")


def join(code: Code) -> None:
    """Change ``code`` in place until nothing can be joined; values that it yields stay.

    A swiglu whose result the step after it alone reads is marked: the runner may write it as that step packs it.
    """
    for rule in (_append_in_qkv, _residual_in_linear, _norm_in_product):
        ends = _Ends(code)
        for step in list(code.steps):
            if isinstance(step, Instruction) and step not in ends.gone:
                rule(code, ends, step)
    ends = _Ends(code)
    for step, after in zip(code.steps, code.steps[1:]):
        if isinstance(step, Instruction) and isinstance(after, Instruction) and step.opcode == "swiglu":
            if after.opcode == "linear" and ends.only_reader(step.writes["out"], after):
                step.numbers["only_next"] = 1


class _Ends:
    """Who makes each buffer and who reads it, as one rule finds them: a rule looks at no buffer that it has moved."""

    def __init__(self, code: Code) -> None:
        self.gone: set[Instruction] = set()  # joined into others
        self._outputs = set(code.outputs.values())
        self._makers: dict[Buffer, Instruction] = {}
        self._readers: dict[Buffer, list[Instruction | HostCall]] = {}
        for step in code.steps:
            if isinstance(step, Instruction):
                self._makers |= dict.fromkeys(writes_of(step), step)
            for buffer in dict.fromkeys(reads_of(step)):
                self._readers.setdefault(buffer, []).append(step)

    def maker(self, buffer: Buffer) -> Instruction | None:
        """The instruction that fills ``buffer``."""
        return self._makers.get(buffer)

    def readers(self, buffer: Buffer) -> list[Instruction | HostCall]:
        """The steps that read ``buffer``."""
        return self._readers.get(buffer, [])

    def only_reader(self, buffer: Buffer, reader: Instruction) -> bool:
        """Whether ``buffer`` goes nowhere else."""
        return buffer not in self._outputs and self.readers(buffer) == [reader]


def _append_in_qkv(code: Code, ends: _Ends, append: Instruction) -> None:
    """``qkv`` whose keys and values go nowhere but to the pool puts them there itself."""
    if append.opcode != "kv_append":
        return
    maker = ends.maker(append.reads["k"])
    if maker is None or maker.opcode != "qkv" or "group" in maker.numbers:
        return
    if maker.writes["k"] is not append.reads["k"] or maker.writes["v"] is not append.reads["v"]:
        return
    if not all(ends.only_reader(append.reads[name], append) for name in ("k", "v")):
        return
    between = code.steps[code.steps.index(maker) + 1 : code.steps.index(append)]
    if any(isinstance(step, HostCall) or step.numbers.get("group") == append.numbers["group"] for step in between):
        return  # what lies between may read the pool as it was
    if "cos" not in maker.reads:  # heads that nothing turns may be cut as the pool wants them
        maker.numbers["heads"] = maker.writes["q"].width // int(append.numbers["head_dim"])
    elif any(maker.numbers[name] != append.numbers[name] for name in ("kv_heads", "head_dim")):
        return
    maker.numbers |= append.numbers
    del maker.writes["k"], maker.writes["v"]
    maker.launches += append.launches
    code.steps.remove(append)
    ends.gone.add(append)


def _residual_in_linear(code: Code, ends: _Ends, step: Instruction) -> None:
    """x + linear(y), and the norm of it where there is one: the product adds x as it stores."""
    if step.opcode not in ("add", "add_rms_norm"):
        return
    total = "out" if step.opcode == "add" else "sum"
    for product, other in (("x", "residual"), ("residual", "x")):
        linear = ends.maker(step.reads[product])
        if linear is None or linear.opcode != "linear" or "residual" in linear.reads:
            continue
        if not ends.only_reader(step.reads[product], step) or step.reads[other] is step.reads[product]:
            continue
        if linear.numbers.get("head_rows", 0) != step.numbers.get("head_rows", 0):
            continue
        linear.reads["residual"] = step.reads[other]
        linear.writes["out"] = step.writes[total]
        linear.launches += step.launches
        code.steps.remove(linear)
        place = code.steps.index(step)
        if step.opcode == "add":
            code.steps[place] = linear
        else:
            norm = Instruction(
                "rms_norm",
                step.launches,
                step.kernel,
                {"x": step.writes["sum"]},
                {"out": step.writes["out"]},
                step.weights,
                step.numbers,
            )
            code.steps[place : place + 1] = [linear, norm]
        return


def _norm_in_product(code: Code, ends: _Ends, norm: Instruction) -> None:
    """A norm that one product alone reads is done while the product packs its rows."""
    if norm.opcode != "rms_norm" or norm.writes["out"] in code.outputs.values():
        return
    readers = ends.readers(norm.writes["out"])
    if len(readers) != 1 or not isinstance(readers[0], Instruction):
        return
    product = readers[0]
    if product.opcode not in _PRODUCTS or "norm" in product.weights or product.reads["x"] is not norm.writes["out"]:
        return
    if sum(buffer is norm.writes["out"] for buffer in product.reads.values()) != 1:
        return
    if norm.numbers.get("head_rows", 0) != product.numbers.get("head_rows", 0):
        return
    product.reads["x"] = norm.reads["x"]
    product.weights["norm"] = norm.weights["norm"]
    product.numbers["eps"] = norm.numbers["eps"]
    product.launches = norm.launches + product.launches
    code.steps.remove(norm)
    ends.gone.add(norm)
