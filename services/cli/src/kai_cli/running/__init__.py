"""Processes of a stack or of a cluster: `kai up`, `kai agent`, `kai load`; and the clusters and dispatches of a hub."""
