"""Where an `Engine` gets the parts that its methods call: from the model that it loaded, or from several that share a
memory budget."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from engine.api.adapter_loader import AdapterLoader, AdapterSource
from engine.formats.template.chat_template import ChatTemplate
from engine.runtime.loop.backend import Backend
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.metrics import Metrics
from engine.runtime.stream.service import Service
from engine.support.errors import MissingTemplateError
from engine.support.reload import remember
from engine.turns.model_parts import ModelParts
from engine.turns.sampling_defaults import SamplingDefaults
from engine.turns.turns import Turns

if TYPE_CHECKING:
    from engine.isolated.parent import IsolatedContext, IsolatedModel
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

    @classmethod
    def over(
        cls,
        backend: "Backend | IsolatedContext",
        template: ChatTemplate | MissingTemplateError,
        model: "Model | IsolatedModel | None" = None,
        seed: int | None = None,
        options: LoopOptions | None = None,
        adapters: AdapterSource | None = None,
        draft: Backend | None = None,
        sampling: SamplingDefaults | None = None,
    ) -> Self:
        """Serve a context, with the first adapters of `adapters` loaded. Raises what `AdapterLoader.load` raises."""
        service, info = Service(backend, options, draft), None if model is None else model.info
        name = "" if info is None else info.name or info.path.stem
        turns = Turns(service, template, seed, options and options.media_urls, sampling, name)
        loaded = cls(service, turns, info, AdapterLoader(service, adapters), model)
        try:
            loaded.adapters.load_first()
        except BaseException:
            loaded.close()
            raise
        remember(loaded)
        return loaded

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
