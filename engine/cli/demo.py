"""`llama-engine demo`: what a small real model does well, where it is installed; else the built-in toy."""

import argparse
import sys
from dataclasses import dataclass
from typing import Literal

from engine.cli import commands
from engine.cli.named import BUILTIN
from engine.cli.screen import Screen
from engine.support.extras import install
from engine.support.packaged import PACKAGED
from engine.types.completion import figures

_REAL = "smollm2"
_STATEMENT = "Anna flies to Rome on Friday."
_ABOUT = "SmolLM2, 135 M weights: good for typed answers and calls. Models to talk to: llama-engine models suggest"
_TOY = "A toy wrote this: it copies words. Real weights"
_QUESTION = "What is 127 times 46?"


@dataclass
class _Trip:
    """What is to be found in the statement."""

    person: str
    city: str
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def demo(options: argparse.Namespace) -> int:
    """Show a typed answer and a call that runs, or the toy's agent loop where no real model is installed."""
    real = PACKAGED[_REAL].path is not None
    options.model = _REAL if real else BUILTIN
    (_with_real_weights if real else _with_the_toy)(options, Screen(sys.stdout))
    return 0


def _with_real_weights(options: argparse.Namespace, screen: Screen) -> None:
    with commands.load(options) as llm:
        screen.said("question", _STATEMENT)
        with llm.stream(_STATEMENT, response_format=_Trip, temperature=0) as answer:
            for event in answer:
                screen.show(event)
        screen.said("question", _QUESTION)
        with llm.stream_run(_QUESTION, tools=[multiply], tool_choice="required", temperature=0, max_steps=1) as stream:
            for event in stream:
                screen.show(event)
        usages = [answer.completion.usage, *(step.completion.usage for step in stream.run.steps)]
    screen.line()
    screen.prose(figures(usages), "dim")
    screen.prose(_ABOUT, "dim")


def _with_the_toy(options: argparse.Namespace, screen: Screen) -> None:
    with commands.load(options) as llm:
        screen.said("question", _QUESTION)
        with llm.stream_run(_QUESTION, tools=[multiply], temperature=0, max_steps=4, max_tokens=400) as stream:
            for event in stream:
                screen.show(event)
    screen.line()
    screen.prose(figures(step.completion.usage for step in stream.run.steps), "dim")
    screen.prose(f"{_TOY} ({PACKAGED[_REAL].size / 1e6:.0f} MB): {install(_REAL)}", "dim")
