"""Rules of queues: their fair shares, their order, and the work that must not start whatever is free."""
