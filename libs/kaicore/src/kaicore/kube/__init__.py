"""Kubernetes at the edge: requests to an API server, objects on the wire, and their translation into the model."""
