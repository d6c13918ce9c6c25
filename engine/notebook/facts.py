"""An engine as a notebook or a prompt shows it: its model in a few facts.

Knows: which properties of an engine say what it is. Does not know: how they are found.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from engine.display import page_markdown, table_html, visible
from engine.errors import RequestError


class Facts(ABC):
    """The base of what has an engine's properties: a short `repr`, and a table in notebooks."""

    @property
    @abstractmethod
    def info(self) -> Any:
        """What the model is; raises RequestError where there is none."""

    @property
    @abstractmethod
    def family(self) -> Any:
        """The family that its output is read as."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it takes no more requests."""

    @property
    @abstractmethod
    def n_ctx(self) -> int:
        """Tokens that one conversation may have."""

    def _facts(self) -> list[tuple[str, str]]:
        try:
            info = self.info
        except RequestError:
            model = [("model", "a backend without a file")]
        else:
            model = [
                ("model", info.name or Path(info.path).name),
                ("weights", f"{info.parameters / 1e6:,.1f} M parameters, {info.quantization}"),
                ("path", str(info.path)),
            ]
        closed = [("state", "closed: load it again")] if self.closed else []
        return [*model, ("family", self.family.title), ("context", f"{self.n_ctx:,} tokens a conversation"), *closed]

    def __repr__(self) -> str:
        facts = dict(self._facts())
        return visible(
            f"<{type(self).__name__} {facts['model']} ({facts['family']}), n_ctx={self.n_ctx}"
            f"{', closed' if self.closed else ''}>"
        )

    def _repr_html_(self) -> str:
        return table_html(self._facts(), type(self).__name__)

    def _repr_markdown_(self) -> str:
        return page_markdown([], "\n".join(f"{name}: {value}" for name, value in self._facts()))
