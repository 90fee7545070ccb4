"""Several models behind one door.

policy    which models are loaded, and which have to leave; without a clock and without I/O
router    an engine for each model, as the policy decides
"""
