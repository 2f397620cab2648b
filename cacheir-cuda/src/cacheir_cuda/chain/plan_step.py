"""The plan step that says which CUDA C++ kernels run a greedy decode step of one row or of several, or why none do."""

from __future__ import annotations

from dataclasses import replace

from cacheir.schedule.flatten import flatten
from cacheir.schedule.program import Program
from cacheir_cuda.chain.recognise import NoChain, recognise
from cacheir_cuda.chain.rows_refusal import rows_note
from cacheir_cuda.forced import forced_here

NOTE = "decode_chain"
GREEDY = "head.greedy"


def plan_decode_chain(program: Program) -> Program:
    """``program`` with the note ``decode_chain``: ``kernels`` of a layer, head and step, or why it is ``refused``.

    ``rows`` are those for several rows by the most that they take, ``rows_refused`` says why there are none.

    The executor runs the chain where the note has kernels and its device, pages and options allow it.
    """
    return replace(program, plan_notes={**program.plan_notes, NOTE: _note(program)})


def _note(program: Program) -> dict[str, object]:
    module = program.modules.get("decode")
    if module is None or not any(head.name == GREEDY for head in module.heads):
        return {"refused": "the program has no greedy decode step"}
    main, head = flatten(program, "decode", module.main.name), flatten(program, "decode", GREEDY)
    forced = forced_here((*main, *head))
    if forced:
        return {"refused": forced}
    try:
        chain = recognise(program, main, head)
    except NoChain as reason:
        return {"refused": str(reason)}
    return {"kernels": list(chain.kernels), "layers": len(chain.layers), **rows_note(chain)}
