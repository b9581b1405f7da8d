"""Custom resources: definitions, structural schemas (prune, default, validate) and their CEL rules."""
