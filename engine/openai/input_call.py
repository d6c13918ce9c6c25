"""A request that is about its `input` and is answered in one piece: for vectors, or for decisions."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.openai.problems import Problem, problem_of
from engine.openai.request import Request
from engine.openai.streaming import EngineLike, ignored_fields
from engine.support.errors import EngineError


def input_problem(error: EngineError, request: Request) -> Problem:
    """Returns the problem that an engine's error is for the client of a request that has an `input`."""
    problem = problem_of(error, {"messages": "input", **request.names})
    if problem.status == 400 and problem.param is None:  # what is wrong, if no option is, is the input
        problem.param = "input"
    return problem


@dataclass(frozen=True, slots=True)
class InputCall:
    """Such a request of one engine, which is served as `model`."""

    engine: EngineLike
    request: Request
    model: str

    @contextmanager
    def problems(self) -> Generator[None]:
        """Raises Problem for an error of the engine in the block."""
        try:
            yield
        except EngineError as error:
            raise input_problem(error, self.request) from error

    def headers(self) -> dict[str, str]:
        """Warn about fields without effect, and return the header that tells a client the same."""
        return ignored_fields(self.request)
