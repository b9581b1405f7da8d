"""The operator: what a Config and SchedulingShards ask for is made, kept as it is to be, and taken away again."""
