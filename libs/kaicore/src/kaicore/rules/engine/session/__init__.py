"""The session of a cycle: the nodes, the groups and the decisions so far, with the room that is kept for others."""
