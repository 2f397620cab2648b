"""``cacheir diff``: what two artifacts or models do not have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.difference import SECTIONS, Change, differences
from cacheir.cli.output import print_json, say
from cacheir.compile import open_program
from cacheir.errors import UsageError
from cacheir.pipeline.diff import text_diff

app = typer.Typer(
    help="Compare two artifacts or models: passes, kernels, weights, plugins, sizes.",
    add_completion=False,
    rich_markup_mode=None,
)

_ONLY = typer.Option([], help=f"Compare this alone: {', '.join(SECTIONS)}; may be repeated.")
# More lines of one section than a person reads; --whole and --json have them all.
_LINES = 12


@app.command()
def diff(
    first: str = typer.Argument(help="An artifact, a model folder or file, or a named model."),
    second: str = typer.Argument(help="What it is compared with."),
    only: list[str] = _ONLY,
    graphs: bool = typer.Option(False, "--graphs", help="Show the diff of the graphs' texts too."),
    whole: bool = typer.Option(False, "--whole", help="Show every line of a section."),
    target: str = typer.Option("", help="When a model is compiled on demand: the backend."),
    exit_code: bool = typer.Option(False, "--exit-code", help="End with 1 where the two differ."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Say what two artifacts or models do not have in common. Models are compiled unless the cache has them."""
    unknown = [name for name in only if name not in SECTIONS]
    if unknown:
        raise UsageError(f"diff has no section {unknown[0]!r}", hint=f"there are: {', '.join(SECTIONS)}")
    options = CompileOptions(target=target or CompileOptions.target)
    before, after = (open_program(name, options, progress=say) for name in (first, second))
    changes = [change for change in differences(before, after) if not only or change.section in only]
    texts = _graph_diffs(before, after) if graphs else []
    if as_json:
        print_json(
            {
                "format": 1,
                "first": str(before.path),
                "second": str(after.path),
                "is_equal": not changes,
                "changes": [asdict(change) for change in changes],
                **({"graphs": texts} if graphs else {}),
            }
        )
    else:
        print("\n".join([changes_text(changes, whole=whole), *texts]))
    if exit_code and changes:
        raise typer.Exit(1)


def changes_text(changes: Sequence[Change], *, whole: bool = False) -> str:
    """The changes by section, ``- before`` and ``+ after`` under each; the first of a section unless ``whole``."""
    if not changes:
        return "no difference"
    lines = []
    for section in SECTIONS:
        own = [change for change in changes if change.section == section]
        if not own:
            continue
        lines.append(f"{section}: {len(own)} unlike")
        shown = own if whole else own[:_LINES]
        for change in shown:
            marked = (("-", change.before), ("+", change.after))
            lines.append(f"  {change.what}")
            lines += [f"    {mark} {text}" for mark, text in marked if text is not None]
        if len(shown) < len(own):
            lines.append(f"  and {len(own) - len(shown)} more: --whole shows all")
    return "\n".join(lines)


def _graph_diffs(before: Artifact, after: Artifact) -> list[str]:
    """The unified diff of each mode's text, those that are equal left out."""
    found = []
    for mode in dict.fromkeys((*before.program.modules, *after.program.modules)):
        texts = [str(artifact.program.modules.get(mode, "")) for artifact in (before, after)]
        found.append(text_diff(*texts, old=f"{before.path.name}: {mode}", new=f"{after.path.name}: {mode}"))
    return [text for text in found if text]
