"""Network topologies: `kai topology` and `kai topology generate`."""
