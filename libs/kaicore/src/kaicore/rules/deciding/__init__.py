"""Decisions on a folded state: a cycle's input, its events, its share of the work, and replay."""
