"""The scheduler: the only decider. It reads the log and the bus, and appends decisions."""
