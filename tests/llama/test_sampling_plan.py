"""Which steps the parameters lead to."""

from typing import Any

import pytest

from engine.llama.sampling import Links, Plan, device_links, plan
from engine.types import SamplingParams

LARGE, TINY = 150_000, 1000


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0}, Plan(None, (), "argmax")),
        ({"temperature": 1e-40, "top_k": 5}, Plan(None, (), "argmax")),
        ({"temperature": 0, "top_k": 5, "top_p": 0.5}, Plan(None, (), "argmax")),
        ({"temperature": 0, "presence_penalty": 1}, Plan(None, ("penalties",), "greedy")),
        ({"temperature": 0, "presence_penalty": 1, "dry_multiplier": 1}, Plan(None, ("penalties", "dry"), "greedy")),
        ({}, Plan(None, (), "dist")),
        ({"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, Plan(None, ("temperature",), "dist")),
        ({"repeat_penalty": 1.1, "top_k": 40}, Plan(None, ("penalties", "top_k"), "dist")),
        ({"samplers": (), "temperature": 0.5}, Plan(None, (), "dist")),
        ({"top_k": 40}, Plan("top_k", (), "dist")),
        ({"top_k": 5000}, Plan(None, ("top_k",), "dist")),
        ({"top_k": 40, "top_p": 0.9, "temperature": 0.6}, Plan("top_k", ("top_p", "temperature"), "dist")),
        ({"top_p": 0.9, "temperature": 0.6}, Plan("top_p", ("temperature",), "dist")),
        ({"min_p": 0.1, "xtc_probability": 1}, Plan(None, ("min_p", "xtc"), "dist")),
        ({"typical_p": 0.9, "top_p": 0.9}, Plan(None, ("typical_p", "top_p"), "dist")),
        ({"dry_multiplier": 1, "top_k": 40}, Plan(None, ("dry", "top_k"), "dist")),
        ({"mirostat": 2, "top_k": 40, "temperature": 0.6}, Plan(None, ("temperature",), "mirostat")),
        (
            {"samplers": ("temperature", "top_p"), "top_p": 0.5, "temperature": 2, "top_k": 3},
            Plan(None, ("temperature", "top_p"), "dist"),
        ),
        (
            {"samplers": ("top_k", "penalties"), "top_k": 3, "presence_penalty": 1},
            Plan("top_k", ("penalties",), "dist"),
        ),
    ],
)
def test_plans(params: dict[str, Any], expected: Plan) -> None:
    assert plan(SamplingParams(**params), LARGE) == expected


def test_a_small_vocabulary_is_left_to_llama_cpp() -> None:
    assert plan(SamplingParams(top_p=0.5), TINY) == Plan(None, ("top_p",), "dist")
    assert plan(SamplingParams(top_k=5), TINY) == Plan(None, ("top_k",), "dist")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0, "top_k": 5}, Links((), "greedy")),
        ({}, Links((), "dist")),
        (
            {"temperature": 0.6, "top_p": 0.9, "min_p": 0.1, "top_k": 9},
            Links(("top_k", "top_p", "min_p", "temperature"), "dist"),
        ),
        (
            {"top_k": 9, "temperature": 0.5, "samplers": ("temperature", "top_k")},
            Links(("temperature", "top_k"), "dist"),
        ),
        ({"logprobs": 0}, None),
        ({"logit_bias": ((1, 2.0),)}, None),
        ({"temperature": 0, "dry_multiplier": 1}, None),
        ({"presence_penalty": 1}, None),
        ({"top_n_sigma": 1.0}, None),
        ({"mirostat": 1}, None),
    ],
)
def test_what_can_be_drawn_on_a_device(params: dict[str, Any], expected: Links | None) -> None:
    assert device_links(SamplingParams(**params)) == expected
