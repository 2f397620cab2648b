"""The NumPy meaning of the primitive ops: the only place in core that computes tensors.

A reference kernel is ``fn(*operands, out_types, **attrs)`` and returns an array or a tuple of arrays. It reads arrays,
``QuantArray`` and ``KVPool``; it may give back views of its operands. It never sees bf16, which
``cacheir.reference.call`` widens to float32 before and rounds after.
"""
