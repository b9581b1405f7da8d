"""Our prediction against recorded decisions of the real kubelet."""
