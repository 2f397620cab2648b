"""CacheIR's C++ backend for CPUs with SIMD instruction sets."""
