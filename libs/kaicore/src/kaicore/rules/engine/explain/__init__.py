"""Explanations: the reasons for which a pod waits, and changes that would let it start."""
