"""A fleet of simulated kubelets that joins any Kubernetes API server."""
