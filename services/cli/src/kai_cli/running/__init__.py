"""Processes of a stack or of a cluster: `kai up`, `kai agent`, `kai load`, `kai logs`."""
