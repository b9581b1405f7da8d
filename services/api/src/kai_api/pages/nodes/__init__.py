"""Pages about nodes: the map, and the zones of one node."""
