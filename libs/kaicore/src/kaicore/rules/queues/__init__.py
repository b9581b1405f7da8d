"""Queues as rules: who is owed how much, who goes next, and what work is not to start, whatever is free."""
