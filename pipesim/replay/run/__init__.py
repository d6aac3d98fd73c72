"""One run: what its processes must know, how they meet and keep time, and what they report."""
