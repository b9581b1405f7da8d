"""Charges: the amounts that pods hold of nodes and zones, and the reasons for which predictions of them missed."""
