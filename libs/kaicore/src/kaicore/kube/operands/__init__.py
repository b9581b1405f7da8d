"""What the operator makes of a `Config` and of `SchedulingShard`s: rules, without I/O and without a clock.

An **operand** is an object that the operator makes: those of the exporter for the Config, and those of a scheduler for
each shard. `plan` says of what is in the cluster which operands lack something, which are to go, and why one cannot be
made; `statuses` says it of each owner in conditions. The operator carries it out, and only moves data.
"""
