"""CacheIR's backend for NVIDIA GPUs."""
