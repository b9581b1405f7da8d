"""Work in a cycle: groups with their pods, and the pods of a group that start next."""
