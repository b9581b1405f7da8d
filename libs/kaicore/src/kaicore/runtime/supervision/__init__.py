"""Supervision of child processes: a run from start to end, its output, and its restart."""
