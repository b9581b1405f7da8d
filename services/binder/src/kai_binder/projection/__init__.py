"""Folds of the log: the work that is left, the GPUs that pods share, and the statuses to be written."""
