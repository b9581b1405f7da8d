"""Comparison of a shadow's decisions with those of the other scheduler and their outcome."""
