"""Prediction for manifests that are submitted now: where their pods start, whom they evict, or when they may start."""
