"""Dialects of workloads: one module for each, and one line of `table` that registers it."""
