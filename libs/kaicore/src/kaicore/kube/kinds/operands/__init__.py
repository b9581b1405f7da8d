"""Rules of the operator: the objects that it makes of a `Config` and of `SchedulingShard`s, without I/O and without a
clock.

An **operand** is an object that the operator makes: those of the exporter for the Config, and those of a scheduler for
each shard. `plan` compares operands with the cluster: which ones lack something, which are to be deleted, and why one
cannot be made. `statuses` reports the same to each owner in conditions. The operator carries it out, and only moves
data.
"""
