"""The ledger: the log of events, the bus that carries it, and the feed that services follow."""
