"""The actions of a cycle, in order: allocate, consolidate, reclaim, preempt, stale gangs, repair."""
