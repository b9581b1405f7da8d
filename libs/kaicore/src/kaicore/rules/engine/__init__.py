"""The decision: a cycle over a snapshot of the cluster, pure and deterministic."""
