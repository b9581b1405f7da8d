"""The life of a pod from the log alone: its events, its attempts, its placement, and its trace."""
