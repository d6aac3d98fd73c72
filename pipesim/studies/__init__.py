"""Questions about a scenario, and their answers.

Which system loses what, and what to do (:mod:`.comparison`, :mod:`.advice`); which delays a
plan absorbs (:mod:`.budgets`); what memory buys (:mod:`.pareto`); how far from the best
possible a plan is (:mod:`.optimum`); which nodes of a data-parallel job should change places
(:mod:`.data_parallel`).
"""
