"""Topologies: their domains, capacity and room, and the answers about them."""
