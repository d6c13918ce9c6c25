"""Who guesses ahead for a model: a smaller one of the same vocabulary, or the model's own head."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from engine.llama.gguf.gguf import GgufFile
from engine.llama.model import Model
from engine.llama.plan.plan import DraftFile
from engine.llama.vocab import LlamaVocab
from engine.runtime.loop.config import ModelOptions
from engine.support.errors import ModelLoadError, shown

_PADDING = re.compile(rb"|\[PAD\d+\]")
"""The bytes of a token that only fills a vocabulary up (convert_hf_to_gguf.py names it so)."""


class DraftModel(NamedTuple):
    """A model to guess ahead: a file to load, or one that is loaded and shares its weights. `is_head`: the head in the
    file of the model itself, with which it is loaded."""

    file: GgufFile
    model: Model | None = None
    is_head: bool = False

    @property
    def planned(self) -> DraftFile:
        """What the plan of memory must know of it."""
        return DraftFile(self.file, sys.maxsize if self.model is not None or self.is_head else None)

    def load(self, options: ModelOptions) -> Model:
        """Load the file, or share the weights that are loaded. Raises ModelLoadError."""
        return load_draft(self.file.path, options) if self.model is None else self.model.lend()


def load_draft(path: Path, options: ModelOptions) -> Model:
    """Load a draft model as the model itself was: with all of its layers on devices, if that has any there. Raises
    ModelLoadError."""
    return Model.load(path, replace(options, n_gpu_layers=-1 if options.n_gpu_layers else 0))


def check_draft(model: Model, draft: Model) -> None:
    """Raise ModelLoadError if `draft` cannot guess for `model`: tokens must mean the same bytes, and wrong guesses must
    be cut off again in both memories."""
    for each in (model, draft):
        if each.info.is_recurrent or each.info.is_hybrid:
            raise ModelLoadError(
                f"{each.info.path} keeps a recurrent memory, from which wrong guesses cannot be cut off: leave draft "
                "out, or use models without one."
            )
    if draft.file.embeds:
        raise ModelLoadError(f"{draft.info.path} makes vectors and writes no text; pass a chat model as draft.")
    difference = _difference(model.vocab, draft.vocab)
    if difference is not None:
        raise ModelLoadError(
            f"{draft.info.path} cannot guess for {model.info.path}, since their vocabularies differ: {difference}. "
            'Pass a draft model of the same family and generation, or draft="ngram".'
        )


def _difference(vocab: LlamaVocab, draft: LlamaVocab) -> str | None:
    """Returns the first difference between two vocabularies. Padding at the end of the longer one does not count."""
    for token in range(min(vocab.size, draft.size)):
        ours, theirs = vocab.token_bytes(token), draft.token_bytes(token)
        if ours != theirs and not (_PADDING.fullmatch(ours) and _PADDING.fullmatch(theirs)):
            return f"token {token} is {shown(ours)} there and {shown(theirs)} in the draft model"
    longer = max(vocab, draft, key=lambda each: each.size)
    for token in range(min(vocab.size, draft.size), longer.size):
        text = longer.token_bytes(token)
        if not _PADDING.fullmatch(text):
            return f"only {'the draft model' if longer is draft else 'the model'} has token {token}, {shown(text)}"
    return None
