"""The compiled evaluator: the SimPy engine's times, for when many runs are needed.

A program becomes a list of events, each the later of two others plus a time (:mod:`.events`,
:mod:`.recurrence`, :mod:`.weights`), and numba runs down the list (:mod:`.loops`,
:mod:`.evaluator`). Orders of operators can be timed without a program (:mod:`.orders`).
"""
