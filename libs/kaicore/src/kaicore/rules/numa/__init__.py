"""What a node's kubelet will say to a pod, told from what the log knows of the node's NUMA zones."""
