"""How far logits may be from the reference's where nobody says, in standard deviations of the reference's."""

from __future__ import annotations

from collections.abc import Iterable

# Kernels and meanings that compute in f32 differ by 1e-7 to 1e-5.
EXACT = 1e-4
# Matrices rounded to 16 bits, and activations with them. The conformance kit allows such a backend 6e-2 and 1e-2 of the
# largest logit, which is three to four standard deviations. Tiny decoders without experts stay within 0.1 and 0.016.
MATRICES = {"bf16": 0.2, "f16": 0.03, "f32": EXACT}
# A kernel that rounds its activations to 8 bits is not wrong: SmolLM2's logits move by 0.2.
ROUNDED = 0.5


def default_tolerance(*, numerics: Iterable[str], matrix_dtype: str = "f32") -> float:
    """The largest of what the chosen kernels' numerics (``KernelSpec.numerics``) and matrices move logits by.

    ``matrix_dtype`` is how the backend holds the matrices that these kernels read (``BackendSpec.matrix_dtype``).
    """
    kernels = EXACT if all(name == "f32" for name in numerics) else ROUNDED
    return max(kernels, MATRICES.get(matrix_dtype, ROUNDED))
