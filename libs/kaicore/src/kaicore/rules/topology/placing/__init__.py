"""Placing pods of sets on a topology: the choice of domains, and the number of pods in each."""
