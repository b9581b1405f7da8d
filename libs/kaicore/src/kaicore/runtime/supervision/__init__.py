"""Processes that this one starts: a run from start to end, what it prints, and who starts it again."""
