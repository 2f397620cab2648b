"""Fills in artifact.json for a program that was compiled."""

from __future__ import annotations

from cacheir import __version__
from cacheir.artifact import layout
from cacheir.artifact.card import Card, CompileOptions, ModelCard, Package
from cacheir.artifact.lock import Lock
from cacheir.artifact.program_key import instruction_set
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation
from cacheir.plugins.specs import BackendSpec
from cacheir.schedule.program import Program


def make_card(
    program: Program,
    model: ImportedModel,
    lock: Lock,
    options: CompileOptions,
    backend: BackendSpec,
    installation: Installation,
) -> Card:
    """The card but for ``files``, which is known once they are written."""
    return Card(
        format=layout.FORMAT,
        core=__version__,
        program_key=lock.program_key,
        model=ModelCard(
            name=model.spec.name if model.spec else "",
            label=model.spec.label if model.spec else model.importer,
            importer=model.importer,
            header_hash=model.header_hash,
            notes=model.notes,
        ),
        options=options,
        target=program.target,
        backend=program.backend,
        instruction_set=instruction_set(backend),
        max_seq=program.max_seq,
        max_rows=program.max_rows,
        max_tokens=program.max_tokens,
        groups=tuple(map(str, program.groups)),
        group_layers=program.group_layers,
        spec=program.spec,
        packages=_packages(program, backend, installation),
        files={},
        plan_notes=program.plan_notes,
    )


def _packages(program: Program, backend: BackendSpec, installation: Installation) -> tuple[Package, ...]:
    """The distributions whose kernels or backend the program runs on."""
    provider = installation.backends.provider(backend.name)
    provided = {provider.distribution or provider.name: {f"backend {backend.name}"}}
    versions = {plugin.distribution or plugin.name: plugin.version for plugin in installation.plugins}
    for schedule in program.schedules.values():
        for kernel, distribution in schedule.kernels.items():
            provided.setdefault(distribution, set()).add(kernel)
    return tuple(
        Package(distribution=name, version=versions.get(name, ""), provides=tuple(sorted(names)))
        for name, names in sorted(provided.items())
    )
