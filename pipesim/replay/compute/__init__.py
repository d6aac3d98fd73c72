"""What operators do: hold for their time, multiply matrices, or train a small GPT."""
