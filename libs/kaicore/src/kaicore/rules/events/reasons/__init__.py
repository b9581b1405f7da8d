"""Reasons for which pods wait, as cycles record them and people read them."""
