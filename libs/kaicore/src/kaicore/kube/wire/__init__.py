"""Kubernetes objects on the wire: the fields that kai-ledger reads, and nothing else."""
