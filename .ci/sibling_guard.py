"""Fails unless every cacheir* distribution of this environment was installed from a file of this tree.

Nobody owns the names of these packages in a public index, so a sibling that came from one is somebody else's code.
Run with the environment's own Python: `python .ci/sibling_guard.py`. Standard library only.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parent.parent


def why_foreign(distribution: Distribution, root: Path) -> str | None:
    """Return why a distribution did not come from the tree at ``root``, or None when it did."""
    text = distribution.read_text("direct_url.json")
    if text is None:
        return "was installed by name, so it came from an index"
    url = urlparse(json.loads(text)["url"])
    if url.scheme != "file":
        return f"was installed over {url.scheme}:"
    path = Path(unquote(url.path)).resolve()
    if not path.is_relative_to(root):
        return f"was installed from {path}, outside {root}"
    return None


def main() -> int:
    """Print a line for each sibling; return 1 when one is foreign or there is none at all."""
    siblings = {d.metadata["Name"]: d for d in distributions() if d.metadata["Name"].lower().startswith("cacheir")}
    if not siblings:
        print("sibling guard: no cacheir distribution is installed here, so nothing was checked")
        return 1
    foreign = {name: why for name, d in siblings.items() if (why := why_foreign(d, ROOT))}
    for name, why in sorted(foreign.items()):
        print(f"sibling guard: {name} {why}; install it from the tree: pip install ./{name}")
    if not foreign:
        print(f"sibling guard: {', '.join(sorted(siblings))} came from this tree")
    return 1 if foreign else 0


if __name__ == "__main__":
    sys.exit(main())
