"""The life of a pod from the log alone: its events, its attempts, its placement, its story, its trace and its wait."""
