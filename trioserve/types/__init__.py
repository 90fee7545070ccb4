"""The values that cross rooms: prompts, sampling parameters, plans, outputs.

Frozen dataclasses and type names, with the checks of their own fields. Every room may import
them; they import nothing but the errors.
"""
