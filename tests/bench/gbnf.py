"""llama.cpp's own grammar sampler over a JSON Schema, for one token: what llama-cpp-python applies for `grammar=`."""

import ctypes
import json
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf


def gbnf_microseconds(path: Path, schema: Mapping[str, Any], steps: int) -> float:
    """The median time in microseconds of one application to all logits; the token taken is any that it allows."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model is not None
    vocab = llama_cpp.llama_model_get_vocab(model)
    assert vocab is not None
    size = llama_cpp.llama_vocab_n_tokens(vocab)
    grammar = json_schema_to_gbnf(json.dumps(schema)).encode()
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar, b"root")
    rng = random.Random(1)
    spans: list[float] = []
    for _ in range(steps):
        data = np.zeros(size, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        data["id"] = np.arange(size)
        candidates = llama_cpp.llama_token_data_array(
            data=data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data)), size=size, selected=-1, sorted=False
        )
        began = time.perf_counter()
        llama_cpp.llama_sampler_apply(sampler, cast("Any", ctypes.byref(candidates)))
        spans.append(time.perf_counter() - began)
        allowed = np.flatnonzero(data["logit"] > -1e30)
        token = int(data["id"][rng.choice(list(allowed))])
        if llama_cpp.llama_vocab_is_eog(vocab, token):
            llama_cpp.llama_sampler_free(sampler)
            sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar, b"root")
            continue
        llama_cpp.llama_sampler_accept(sampler, token)
    llama_cpp.llama_sampler_free(sampler)
    llama_cpp.llama_model_free(model)
    return statistics.median(spans) * 1e6
