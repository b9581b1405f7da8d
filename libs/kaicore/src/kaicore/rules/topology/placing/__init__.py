"""Placing pods of sets on a topology: which domains, and how many pods in each."""
