"""Read models: the data that pages and lists need of a whole log. They are kept beside the log and can always be
rebuilt.
"""
