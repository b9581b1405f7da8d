"""The model of one kubelet: its settings, its managers' accounts, and its walk over a pod."""
