"""The event log: the port, the hash chain, and its implementations."""
