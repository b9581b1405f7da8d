"""The projector: keeps the read models of the log. It writes nothing else."""
