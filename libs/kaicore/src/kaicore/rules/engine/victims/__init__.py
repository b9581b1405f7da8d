"""Victims: running pods that leave so that others can start, and the cost of that."""
