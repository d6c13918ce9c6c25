"""What the preflight's child decodes: all sequences that the options ask for, of different lengths."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.isolated import preflight, preflight_child
from engine.llama.context import LlamaBackend
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize(("n_sequences", "expected"), [(1, 1), (None, 4), (7, 7), (64, 64)])
def test_all_sequences_are_decoded_at_once_with_different_lengths(
    monkeypatch: pytest.MonkeyPatch,
    builtin_model_path: Path,
    n_sequences: int | None,
    expected: int,
    *,
    kv_unified: bool,
) -> None:
    batches: list[Sequence[Row]] = []
    decode = LlamaBackend.decode

    def seen(self: LlamaBackend, rows: Sequence[Row]) -> None:
        batches.append(rows)
        decode(self, rows)

    monkeypatch.setattr(LlamaBackend, "decode", seen)
    model, context = preflight.reduced(
        ModelOptions(use_extra_bufts=False),
        ContextOptions(n_sequences=n_sequences, kv_unified=kv_unified),
    )
    order = {"task": "decode", "model": str(builtin_model_path), "load": asdict(model), "context": asdict(context)}
    assert preflight_child.carry_out(order) == "ok"
    first, last = batches[0], batches[-1]
    assert (len(first), {row.sequence for row in first}) == (64, {0}), "the known fault shows in such a batch"
    assert [row.sequence for row in last] == list(range(expected))
    lengths = {row.position for row in last}
    assert len(lengths) == min(expected, 14), "no two of the first thirteen are alike"
    if expected == 7:
        several = [{row.sequence for row in rows} for rows in batches if len(rows) > expected]
        assert set(range(1, 7)) in several, "prompts of several sequences share a batch"
