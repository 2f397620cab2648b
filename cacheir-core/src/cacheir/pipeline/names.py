"""How passes and steps are named on the command line: ``-`` and ``_`` alike, and a nearest name for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cacheir.errors import UsageError


def find_name(wanted: str, known: Iterable[str], kind: str) -> str:
    """The one of ``known`` that ``wanted`` means; UsageError, listing the nearest or all, where there is none."""
    names = {fold_name(name): name for name in known}
    found = names.get(fold_name(wanted))
    if found is not None:
        return found
    near = difflib.get_close_matches(fold_name(wanted), names, n=1)
    hint = f"did you mean {names[near[0]]!r}?" if near else "known: " + ", ".join(sorted(names.values()))
    raise UsageError(f"no {kind} is called {wanted!r}", hint=hint)


def fold_name(name: str) -> str:
    """``name`` in the spelling that is compared."""
    return name.strip().replace("_", "-").lower()
