"""What an iteration is spent on: its causes, how they share it, and which one is the worst."""
