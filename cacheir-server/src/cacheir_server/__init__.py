"""CacheIR's HTTP server."""
