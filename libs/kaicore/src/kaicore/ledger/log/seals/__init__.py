"""Seals of the log: its audit, anchors of its hashes, and deposits that hold these out of reach."""
