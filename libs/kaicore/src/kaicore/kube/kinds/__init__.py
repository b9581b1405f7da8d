"""The kinds that are recorded: where each is served, and how its objects become facts."""
