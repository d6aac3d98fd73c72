"""A device of a run: its launch queue, on CPU or CUDA, and the ways its messages take."""
