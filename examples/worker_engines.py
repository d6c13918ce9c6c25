"""An engine for each worker process: Spark, Dask and Daft answer the partitions of a table alike.

A worker loads the engine with its first partition and keeps it; only this module and the rows travel. Give Spark and
Dask few workers, each with many cores and partitions of some hundred rows.
"""

import datetime
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pandas as pd
from pydantic import BaseModel

from engine import Engine, batch

MODEL = None  # a path that is the same on every machine, or a name on the Hub
LOAD: dict[str, Any] = {"n_sequences": 8, "kv_unified": False}  # an answer hangs on no row that is beside it
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "quiet": True}


class Event(BaseModel):
    """What is extracted; its fields become columns."""

    title: str
    date: datetime.date


@cache
def engine() -> Engine:
    """Returns the engine of this process."""
    return Engine.load(MODEL, **LOAD)


def answered(part: pd.DataFrame) -> pd.DataFrame:
    """Returns a partition with the columns `answer`, `title`, `date`, `finish_reason` and `error`."""
    return batch.run(part, llm=lambda _: engine(), prompt="Extract: {text}", schema=Event, **OPTIONS)


def answered_parts(parts: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """For Spark: `mails.mapInPandas(answered_parts, schema)`."""
    return map(answered, parts)


def with_spark(mails: Any) -> Any:
    """Returns a DataFrame of pyspark with its columns and the answers'."""
    columns = [f"`{field.name}` {field.dataType.simpleString()}" for field in mails.schema.fields]
    added = [f"`{name}` string" for name in answered(pd.DataFrame({"text": []})).columns[1:]]
    return mails.mapInPandas(answered_parts, ", ".join(columns + added))


def with_dask(mails: Any) -> Any:
    """Returns a DataFrame of dask with its columns and the answers'."""
    return mails.map_partitions(answered, meta=answered(mails._meta))


def with_daft(mails: Any) -> Any:
    """Returns a DataFrame of daft with a column `event`: the answer's fields, or null."""
    import daft

    @daft.func.batch(
        return_dtype=daft.DataType.struct({"title": daft.DataType.string(), "date": daft.DataType.string()})
    )
    def event(texts: daft.Series) -> list[Any]:
        return answered(pd.DataFrame({"text": texts.to_pylist()}))[["title", "date"]].to_dict("records")

    return mails.with_column("event", event(mails["text"]))
