"""The dashboard: pages of HTML that are functions of a cluster's state at one position of its log."""
