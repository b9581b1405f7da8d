"""Who asks, and what may be answered."""
