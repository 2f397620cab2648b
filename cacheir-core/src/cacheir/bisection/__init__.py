"""Finding the first pass, rewrite and kernel at which the logits of a compiled model leave the reference's."""

from cacheir.bisection.bisect_model import bisect_model
from cacheir.bisection.result import Bisection, Finding

__all__ = ["Bisection", "Finding", "bisect_model"]
