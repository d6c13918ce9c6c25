"""A format for a template that no family knows, derived from its renders."""

from engine.template.derive.derivation import derivation

__all__ = ["derivation"]
