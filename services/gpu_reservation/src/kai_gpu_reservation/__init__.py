"""The program of reservation pods: each holds one GPU that is opened for shares, and says which one."""
