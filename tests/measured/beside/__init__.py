"""Runs beside the real kube-scheduler, on a real API server or on the simulated one: `make beside`."""
