"""Profiles of fleets: their text, and the nodes that they make."""
