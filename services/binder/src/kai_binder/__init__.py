"""The binder: the only writer to the Kubernetes API. It makes decisions so, and records what became of them."""
