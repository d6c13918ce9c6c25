"""Constraints: what a model may write, as a grammar in the family's own syntax, enforced token by token."""
