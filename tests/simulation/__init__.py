"""Deterministic simulation: the real services in one process, on a virtual clock and a network that fails.

Everything of a run comes from one integer. `docs/explanation/simulation.md` tells it in full.
"""
