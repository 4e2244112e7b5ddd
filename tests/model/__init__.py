"""The protocol as an explicit-state model: every interleaving within small bounds, and what must hold in each.

    world      what exists at one moment, as one immutable value
    settings   how much may happen: copies, faults, budgets
    database   what the server does in one transaction
    lanes, duties, operators, faults, neighbours     who takes steps, and which
    protocol   all steps together
    judge      the rules
    explore    breadth first over all worlds, then backwards for progress
    variants   designs that look as good, each of which breaks a rule

`python -m tests.model` prints how many worlds each setting has; `--large` adds the large settings.
"""
