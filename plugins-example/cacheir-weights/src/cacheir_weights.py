"""A CacheIR plugin: the command weights, which says in which types a model stores how many weights."""

from cacheir.plugins import CommandSpec, hookimpl


def weights(model: str):
    """Say in which types MODEL stores its weights: a folder, a file or a named model. Nothing is read of them."""
    from collections import Counter
    from math import prod

    from cacheir.models.find_model import ModelSource, find_importer, find_path, open_model
    from cacheir.plugins.installation import default

    installation = default()
    path = find_path(model, installation)
    opened = open_model(ModelSource(path, find_importer(path, installation), path.name), installation)
    tensors, elements, nbytes = Counter(), Counter(), Counter()
    for source in opened.sources.values():
        tensors[source.format] += 1
        elements[source.format] += prod(source.shape)
        nbytes[source.format] += source.nbytes
    print(f"{'TYPE':<12} {'TENSORS':>8} {'WEIGHTS':>14} {'BYTES':>14}")
    for name, _ in nbytes.most_common():
        print(f"{name:<12} {tensors[name]:>8} {elements[name]:>14,} {nbytes[name]:>14,}")
    print(f"{'all':<12} {tensors.total():>8} {elements.total():>14,} {nbytes.total():>14,}")


@hookimpl
def cacheir_register_commands():
    yield CommandSpec(
        name="weights",
        help="Say in which types a model stores its weights.",
        app="cacheir_weights:weights",
    )
