"""Trials on a copy: objects without a cluster, manifests before submission, history with other rules, and shadows."""
