"""One node's kubelet: its loop, its objects and its files."""
