"""Why a pod waits, and what would change it."""
