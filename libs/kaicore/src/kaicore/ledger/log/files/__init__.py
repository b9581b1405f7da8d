"""Logs as files: a range of a cluster's log in one compressed file, and retired months read as if still there."""
