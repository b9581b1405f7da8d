"""Putting pods on nodes: the nodes as columns, the classes of pods, and what a simulation does to them."""
