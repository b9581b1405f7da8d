"""Dynamic resource allocation: the allocation of devices in a node's pools to resource claims."""
