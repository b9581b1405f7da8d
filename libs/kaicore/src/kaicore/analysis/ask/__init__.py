"""Questions about a log and their answers, from the log alone: one set for the command line and the API.

`answers` needs no engine, so that a client of the API starts fast. For that reason this package imports
nothing.
"""
