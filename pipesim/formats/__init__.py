"""Foreign formats: one file or folder for one format, reading strictly, writing atomically.

Every reader gives a valid object or a :class:`pipesim.errors.FormatError` that names the
file and the place in it; every writer leaves the whole file or none.
"""
