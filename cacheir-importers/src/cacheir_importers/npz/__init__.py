"""Reads weights in NumPy's NPZ files; nothing is ever unpickled."""
