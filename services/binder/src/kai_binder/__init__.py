"""The binder: the only writer to the Kubernetes API. It carries decisions out, and records their outcomes."""
