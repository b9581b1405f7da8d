"""Read models: what pages and lists need of a whole log, kept beside it, and made anew from it at any time."""
