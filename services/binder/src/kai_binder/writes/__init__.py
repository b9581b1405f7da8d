"""Writes to the API server: bindings and evictions in their order, their claims and GPUs, and what can wait."""
