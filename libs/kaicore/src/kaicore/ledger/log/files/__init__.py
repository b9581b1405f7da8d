"""Logs as files: a range of a cluster's log in one compressed file, and retired months that are read like the log."""
