"""CacheIR's NumPy backend: the executor that runs everywhere."""
