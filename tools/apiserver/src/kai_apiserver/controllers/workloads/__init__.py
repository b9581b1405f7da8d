"""Workloads without an operator here: one controller, and a table of rules by kind."""
