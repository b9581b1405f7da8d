"""Placing groups in network topologies: the requests to the search, and the nodes in its view."""
