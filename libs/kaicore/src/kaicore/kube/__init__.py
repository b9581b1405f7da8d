"""Kubernetes at the edge: talking to an API server, objects as they come, and what they mean in the model's words."""
