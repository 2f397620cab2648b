"""Links between the pages of this tree lead somewhere, and every page is reached from docs/index.md."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"\[[^\]]+\]\((?!https?:|mailto:)(?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def links(page: Path) -> list[tuple[Path, str]]:
    """The pages and anchors that a page points at, code blocks left out."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        ((page.parent / match["target"]).resolve() if match["target"] else page, (match["anchor"] or "")[1:])
        for match in LINK.finditer(text)
    ]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a web view of the repository makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere(committed_files: list[Path], root: Path) -> None:
    pages = [path for path in committed_files if path.suffix == ".md"]
    assert len(pages) > 10
    bad = []
    for page in pages:
        for target, anchor in links(page):
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                bad.append(f"{page.relative_to(root)}: {target.name}#{anchor}")
    assert not bad


def test_every_page_is_listed_in_the_index(root: Path) -> None:
    index = root / "docs" / "index.md"
    listed = {target for target, _ in links(index)}
    pages = {path.resolve() for path in root.glob("docs/*.md")} - {index.resolve()}
    assert not {page.name for page in pages - listed}
