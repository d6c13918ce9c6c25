"""Whether a caller's variables make a chat template write calls in another form than its family reads.

A model follows the form that its prompt shows. Some templates have a variable that changes it: with the family's own
reader, arguments would then be lost, or hold markup.
"""

import json
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from engine.formats.families import Format
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.derive.derivation import readings, shown_turns
from engine.formats.template.derive.probes import Turns, brief_turns
from engine.formats.template.env import Template
from engine.support.errors import RequestError

_MOST = 256
"""The most sets of variables that are remembered."""


class CallForm:
    """Compares the calls that a template writes with a caller's variables with those that it writes without.
    `fixed`: the variables that every render has."""

    def __init__(self, template: Template, format_: Format, can: Capabilities, fixed: Mapping[str, str]) -> None:
        self._template = template
        self._format = format_
        self._can = can
        self._fixed = fixed
        self._known: dict[bytes, bool] = {}
        self._usual: str | None = None

    def check(self, variables: Mapping[str, Any], until: float) -> None:
        """Raise RequestError if calls written with these variables are not read. `until`: when to stop the template, on
        `time.monotonic`'s clock; TemplateError then."""
        read = {name: value for name, value in variables.items() if name in self._template.variables}
        if not read:
            return
        key = blake2b(json.dumps(read, sort_keys=True, default=repr).encode(), digest_size=16).digest()
        if key not in self._known:
            if len(self._known) == _MOST:
                self._known.clear()
            self._known[key] = self._reads(read, self._template.hurried(until - time.monotonic()))
        if not self._known[key]:
            names = " and ".join(read)
            raise RequestError(
                f"With template_kwargs for {names}, this model's chat template writes calls of tools in a form that "
                "the model's family does not have: calls would not be found, or with other arguments. Leave "
                f"{names} out; or load the model with a family= or a response_template= of that form."
            )

    def _reads(self, variables: Mapping[str, Any], template: Template) -> bool:
        """Whether the format reads the call that the template writes with these variables, or it writes none."""
        if self._usual is None:
            self._usual = self._usual_call(template)
        if not self._usual:
            return True
        turns = brief_turns(template, {**self._fixed, **variables}, self._can)
        return turns is None or turns.one in ("", self._usual) or self._finds(turns)

    def _usual_call(self, template: Template) -> str:
        """Returns the call that the template writes by itself; "" if it shows none, or one that the format does not
        read: then that format is the caller's choice."""
        turns = brief_turns(template, self._fixed, self._can)
        return turns.one if turns is not None and self._finds(turns) else ""

    def _finds(self, turns: Turns) -> bool:
        """Whether the format finds the call in the turn that shows one."""
        shown = (turn for turn in shown_turns(turns, self._can) if turn.read[2])
        return all(any(calls == turn.read[2] for _, _, calls in readings(self._format, turns, turn)) for turn in shown)
