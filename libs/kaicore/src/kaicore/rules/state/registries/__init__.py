"""Registries: the objects of a cluster other than pods, as facts give them, and their effect on pods."""
