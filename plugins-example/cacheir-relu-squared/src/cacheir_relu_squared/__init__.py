"""A CacheIR plugin: the op relu_squared, a kernel for it, and a family of models that uses it."""
