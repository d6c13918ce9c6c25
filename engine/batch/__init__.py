"""Offline batches: rows in, answers out; of files, resumed wherever they were killed, and of Ray Data's batches.

`run(rows, out, llm)` is the door to files, `RayWorker` the one for Ray: `from engine import batch`.
"""

from engine.batch.job import EngineLike, Report, run
from engine.batch.ray_worker import RayWorker
from engine.batch.source import Plan

__all__ = ["EngineLike", "Plan", "RayWorker", "Report", "run"]
