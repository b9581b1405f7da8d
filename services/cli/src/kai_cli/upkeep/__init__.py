"""Upkeep of a log and its API: `kai migrate`, `kai retire`, `kai keys`."""
