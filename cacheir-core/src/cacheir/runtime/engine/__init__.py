"""Continuous batching: many requests on one executor, planned step by step."""
