"""Groups: which pods start together, whatever object or annotation says so. Rules only."""
