"""What an open model takes outside its executor: records of the program, and the tokenizer's tables."""

from __future__ import annotations

from cacheir.schedule.program import Program

# Measured with models of 30 layers, read from the cache and compiled: graphs and plans are Python objects, a few for
# each op and one for each tensor; a tokenizer keeps its vocabulary in two tables, with its merges.
PROGRAM_BYTES = 14_000_000
TOKEN_BYTES = 350


def host_bytes(program: Program) -> int:
    """Resident bytes beyond those of the imports and of the executor, roughly."""
    vocabulary = program.spec.vocab_size if program.spec is not None and program.tokenizer is not None else 0
    return PROGRAM_BYTES + TOKEN_BYTES * vocabulary
