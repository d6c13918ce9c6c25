"""The agent loop: a turn, its calls run, their results fed back."""

from engine.agent.loop import Run, RunStream, Step, stream_run

__all__ = ["Run", "RunStream", "Step", "stream_run"]
