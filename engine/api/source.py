"""Where an `Engine` gets the parts that its methods call: from the model that it loaded, or from several that share a
memory budget."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from engine.api.adapter_loader import AdapterLoader
from engine.runtime.loop.metrics import Metrics
from engine.turns.model_parts import ModelParts

if TYPE_CHECKING:
    from engine.isolated.parent import IsolatedModel
    from engine.llama.model import Model


class Source(Protocol):
    """What an `Engine` is made over."""

    def lease(self) -> "AbstractContextManager[Loaded]":
        """Load the model if it is not in memory, and keep it there for a `with`."""
        ...

    def lease_for_vectors(self) -> "AbstractContextManager[Loaded]":
        """`lease`, with room for a context that makes vectors."""
        ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Loaded(ModelParts):
    """A model in memory, which stays there until it is closed: the source of an engine of its own, and what several
    models lease. Closing it frees the backend and the weights."""

    adapters: AdapterLoader
    model: "Model | IsolatedModel | None"

    def lease(self) -> Self:
        """Returns itself."""
        return self

    lease_for_vectors = lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing ends with a lease."""

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics

    @property
    def closed(self) -> bool:
        return self.service.closed

    @property
    def is_pinned(self) -> bool:
        """Whether somebody keeps a prefix pinned."""
        return bool(self.service.pinned)

    @property
    def in_use(self) -> bool:
        return self.is_pinned or bool(self.service.running)

    def close(self) -> None:
        self.service.close()
        if self.model is not None:
            self.model.close()
