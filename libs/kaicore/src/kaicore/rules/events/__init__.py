"""Events: what is recorded, how it is written, and how old ones are read."""
