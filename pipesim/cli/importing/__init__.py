"""``pipesim import KIND``: a scenario from a measured run, or a plan from another tool.

One file for one kind; :mod:`.shared` holds what they have in common.
"""
