"""A CacheIR plugin: the sampler top-n-sigma, which picks among the tokens near the largest logit.

Tang et al., "Top-n-sigma: Not All Logits Are You Need" (arXiv 2411.07641): tokens whose logit is less than the largest
one minus n standard deviations of all logits are gone. Which tokens stay does not depend on the temperature.
"""

from cacheir.plugins import SamplerSpec, hookimpl

N = 1.0


def top_n_sigma(params):
    """The sampler of one answer: from logits f32 [B, V] to ids i64 [B]. Equal seeds draw equal numbers."""
    import numpy as np

    rng = np.random.default_rng(params.seed)

    def pick(logits):
        allowed = np.isfinite(logits)  # a token that may not be taken has -inf
        sigma = np.std(logits, axis=-1, where=allowed, keepdims=True)
        kept = logits >= logits.max(axis=-1, keepdims=True) - N * sigma
        if params.temperature:
            logits = logits / params.temperature + rng.gumbel(size=logits.shape)
        return np.where(kept, logits, -np.inf).argmax(axis=-1)

    return pick


@hookimpl
def cacheir_register_samplers():
    yield SamplerSpec(
        name="top-n-sigma",
        summary="Among the tokens within n standard deviations of the best.",
        factory="cacheir_top_n_sigma:top_n_sigma",
    )
