"""What the log says now: the fold of events into the state that cycles, replays and explanations work on."""
