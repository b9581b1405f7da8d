"""Which running pods are to leave so that others can start, and what that costs."""
