"""The state of a cluster: the fold of its log's events. Cycles, replays and explanations work on it."""
