"""The agent loop: generates a turn, runs its calls, and feeds their results back."""

from engine.agent.agent import Agent
from engine.agent.limits import RunArguments, RunOptions, run_options
from engine.agent.run import Run, RunStream, Step, stream_run
from engine.agent.transcript import CallRecord, RunInput, Transcript

__all__ = [
    "Agent",
    "CallRecord",
    "Run",
    "RunArguments",
    "RunInput",
    "RunOptions",
    "RunStream",
    "Step",
    "Transcript",
    "run_options",
    "stream_run",
]
