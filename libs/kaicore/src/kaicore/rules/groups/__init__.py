"""Groups: pods that start together, from any object or annotation that defines them. Rules only."""
