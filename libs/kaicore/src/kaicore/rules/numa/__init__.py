"""Prediction of a kubelet's answer to a pod, from what the log records of the node's NUMA zones."""
