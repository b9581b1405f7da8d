"""Constraints by NUMA zones: the verdicts of kubelets, and the doubts about their accounts."""
