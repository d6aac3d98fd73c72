"""``pipesim trace COMMAND``: delays that change over time. One file for one command."""
