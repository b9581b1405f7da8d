"""How work is shared by several members: who of them is live, and who owns what."""
