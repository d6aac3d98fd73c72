"""Formats of other tools: one file or folder per format, read strictly, written atomically.

Every reader returns a valid object or raises a :class:`pipesim.errors.FormatError` that names the
file and the place in it; every writer writes the whole file or nothing.
"""
