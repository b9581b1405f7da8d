"""What would become of manifests that are submitted now: where they start, whom they evict, or when they may start."""
