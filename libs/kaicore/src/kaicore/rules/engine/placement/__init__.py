"""Placement of pods on nodes: the nodes as columns, the classes of pods, and trial operations on them."""
