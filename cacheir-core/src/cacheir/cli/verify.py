"""``cacheir verify``: is an artifact what was written, and is its model still the one that was compiled?"""

from __future__ import annotations

from pathlib import Path

import typer

from cacheir.artifact.verify import verify_artifact
from cacheir.cli.output import print_json
from cacheir.errors import ArtifactError
from cacheir.plugins.installation import default

app = typer.Typer(
    help="Check that an artifact is whole and belongs to its model.", add_completion=False, rich_markup_mode=None
)

_ARTIFACT = typer.Argument(help="An artifact folder.")


@app.command()
def verify(
    artifact: Path = _ARTIFACT,
    headers_only: bool = typer.Option(False, "--headers-only", help="Do not read a linked model's tensors."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> int:
    """Name every file of an artifact that is missing, changed or does not belong. Exits with 8 where there is one."""
    found = verify_artifact(artifact, default(), read_weights=not headers_only)
    if as_json:
        print_json(
            {
                "format": 1,
                "artifact": str(artifact),
                "files": found.files,
                "content": found.content,
                "findings": [vars(finding) for finding in found.findings],
                "notes": list(found.notes),
            }
        )
    else:
        for finding in found.findings:
            print(f"FAIL  {finding.file or 'artifact'}: {finding.fault}")
        for note in found.notes:
            print(f"note  {note}")
        if not found.findings:
            content = f", content {found.content[:16]}" if found.content else ""
            print(f"ok    {found.files} files{content}")
    return ArtifactError.exit_code if found.findings else 0
