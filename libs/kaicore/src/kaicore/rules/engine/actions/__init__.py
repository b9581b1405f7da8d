"""What a cycle does, one action after the other: allocate, consolidate, reclaim, preempt, stale gangs, repair."""
