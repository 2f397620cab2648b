"""``python -m cacheir``: the command ``cacheir``."""

from __future__ import annotations

from cacheir.cli.main import main

main()
