"""Kubernetes objects as their JSON has them: as structs that are read, and as plain mappings that are made."""
