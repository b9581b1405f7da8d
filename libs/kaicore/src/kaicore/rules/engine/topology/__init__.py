"""Placing groups in network topologies: what is asked of the search, and the nodes as it sees them."""
