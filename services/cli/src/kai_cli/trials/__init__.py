"""Trials without a decision: `kai what-if`, `kai simulate`, `kai shadow report`."""
