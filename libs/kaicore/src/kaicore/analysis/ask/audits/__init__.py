"""Audits: placements, nodes and groups, over a part of a log."""
