"""Custom resources: definitions, structural schemas (prune, default, validate)."""
