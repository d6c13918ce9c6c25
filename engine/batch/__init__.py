"""Offline batches of rows: files, whose batches resume wherever they were killed, and Ray Data's batches.

`run(rows, out, llm)` processes files, `RayWorker` serves Ray: `from engine import batch`.
"""

from engine.batch.index import Plan
from engine.batch.job import BatchOptions, Report, run
from engine.batch.ray_worker import RayWorker

__all__ = ["BatchOptions", "Plan", "RayWorker", "Report", "run"]
