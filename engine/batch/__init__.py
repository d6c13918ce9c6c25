"""Offline batches of rows: files, whose batches resume wherever they were killed, and Ray Data's batches.

`run(rows, out, llm)` processes files, `RayWorker` serves Ray: `from engine import batch`.
"""

from engine.batch.job import EngineLike, Report, run
from engine.batch.ray_worker import RayWorker
from engine.batch.source import Plan

__all__ = ["EngineLike", "Plan", "RayWorker", "Report", "run"]
