"""Derives a format for a template of no known family from its renders."""

from engine.formats.template.derive.derivation import derivation

__all__ = ["derivation"]
