"""Two suites of questions to a server of Chat Completions, or to an engine of this process, that say what it got wrong.

    for record in check.forgery(check.HttpExchange("http://localhost:8080/v1")):
        print(record.verdict, record.case, record.why)

`forgery`: does a caller's text become control tokens? `forms`: do reasoning, calls, schemas and streams keep their
form?
"""

from benchmarks.check.exchange import Exchange, HttpExchange, LocalExchange, Reply
from benchmarks.check.forgery import forgery
from benchmarks.check.forms import forms
from benchmarks.check.records import Record

__all__ = ["Exchange", "HttpExchange", "LocalExchange", "Record", "Reply", "forgery", "forms"]
