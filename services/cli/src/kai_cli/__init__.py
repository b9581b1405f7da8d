"""The command line, `kai`."""
