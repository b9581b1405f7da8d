"""Pods: the entry of each, its changes by events, and the placements that it was decided and observed on."""
