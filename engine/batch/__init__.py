"""Offline batches: files of rows in, files of answers out, resumed wherever they were killed.

`run(rows, out, llm)` is the door: `from engine import batch`.
"""

from engine.batch.job import EngineLike, Report, run
from engine.batch.source import Plan

__all__ = ["EngineLike", "Plan", "Report", "run"]
