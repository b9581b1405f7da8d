"""Questions to a log, and nothing but a log, and their answers: one set for the command line and the API.

`answers` and `spelling` need no engine, so that a client of the API starts fast; nothing is imported here for that.
"""
