"""The hub's look at clusters: what dispatches ask for, and what would become of them in each."""
