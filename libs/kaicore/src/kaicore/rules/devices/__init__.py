"""Dynamic resource allocation: which devices of a node's pools resource claims get."""
