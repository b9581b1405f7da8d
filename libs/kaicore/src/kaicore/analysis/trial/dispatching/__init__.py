"""The hub's view of clusters: the requests of dispatches, and the outcome of each dispatch in each cluster."""
