"""How far a model's positions reach, and RoPE options: checked against the file, completed for YaRN, and as llama.cpp's
parameters. llama-context.cpp says which of an option and the file counts."""

from dataclasses import replace
from typing import Any

from engine.llama.gguf.gguf import GgufFile
from engine.runtime.loop.config import ContextOptions, LlamaOptions
from engine.support.errors import RequestError

_TYPES = {"none": 0, "linear": 1, "yarn": 2}  # enum llama_rope_scaling_type (llama.h)
YARN = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx")
"""The options of YaRN; None is the file's own."""
_NAMES = {"yarn": "YaRN", "longrope": "LongRoPE", "linear": "linear scaling"}


def rope_params(options: ContextOptions) -> dict[str, Any]:
    """Returns the fields of llama_context_params that were given for positions; the file's own hold for the others."""
    given = {name: value for name in ("rope_freq_base", "rope_freq_scale") if (value := getattr(options, name))}
    given |= {name: value for name in YARN if (value := getattr(options, name)) is not None}
    return (
        given
        if options.rope_scaling_type is None
        else {"rope_scaling_type": _TYPES[options.rope_scaling_type], **given}
    )


def adopted(params: Any, options: LlamaOptions) -> LlamaOptions:
    """Returns the options with those for positions of the llama_context_params of another context, where they have the
    file's own."""
    scaling = next((name for name, number in _TYPES.items() if number == params.rope_scaling_type), None)
    original = params.yarn_orig_ctx if scaling == "yarn" else 0
    return replace(
        options,
        rope_scaling_type=scaling,
        yarn_orig_ctx=options.yarn_orig_ctx or original or None,
        rope_freq_base=options.rope_freq_base or params.rope_freq_base,
        rope_freq_scale=options.rope_freq_scale or params.rope_freq_scale,
    )


def rope_options(file: GgufFile, options: ContextOptions) -> ContextOptions:
    """Returns the options with YaRN completed: for an `n_ctx` that the positions do not reach, it stretches the
    original length to that. The same again for options that this made. Raises RequestError for options that mean
    nothing to this model."""
    yarn = [name for name in YARN if getattr(options, name) is not None]
    stretching = [name for name in ("rope_scaling_type", "rope_freq_scale") if getattr(options, name)] + yarn
    given = [*stretching, *(["rope_freq_base"] if options.rope_freq_base else [])]
    if given and not file.shape.rope.rotates:
        kind = "learned positions" if file.shape.n_positions else "no positions that rotate"
        raise RequestError(
            f"{given[0]}={getattr(options, given[0])!r} is for models with rotary positions (RoPE), and this one "
            f"({file.architecture}) has {kind}; leave it out."
        )
    scaling = options.rope_scaling_type or file.shape.rope.scaling
    if scaling == "yarn" and stretching:
        return _completed(file, options)
    if yarn:
        raise RequestError(
            f"{yarn[0]} is an option of YaRN, and this context has rope_scaling_type={scaling!r}; pass "
            'rope_scaling_type="yarn" with it, or leave it out.'
        )
    if scaling == "none" and options.rope_freq_scale not in (0.0, 1.0):
        raise RequestError(
            f'rope_freq_scale={options.rope_freq_scale} has no effect with rope_scaling_type="none"; pass "linear" or '
            '"yarn", or leave it out.'
        )
    return options


def _completed(file: GgufFile, options: ContextOptions) -> ContextOptions:
    options = replace(options, rope_scaling_type="yarn")
    if options.yarn_attn_factor is not None and options.yarn_ext_factor != 0:
        raise RequestError(
            "yarn_attn_factor has no effect: llama.cpp takes it from the factor unless yarn_ext_factor=0; pass that "
            "with it, or leave it out."
        )
    fast, slow = options.yarn_beta_fast, options.yarn_beta_slow
    if fast is not None and slow is not None and fast <= slow:
        raise RequestError(f"yarn_beta_fast={fast} must be more than yarn_beta_slow={slow}.")
    if options.rope_freq_scale > 1:
        raise RequestError(
            f"rope_freq_scale={options.rope_freq_scale} would shorten the context: it is one through YaRN's factor, "
            "such as 0.25 for a context of four times the length."
        )
    if options.rope_freq_scale or (options.n_ctx or 0) <= reach(file, options):
        return options
    original = options.yarn_orig_ctx or _original(file)
    if not original:
        raise RequestError(
            f"{file.path} does not say how long its training texts were; pass yarn_orig_ctx= with "
            'rope_scaling_type="yarn".'
        )
    return replace(options, yarn_orig_ctx=original, rope_freq_scale=original / (options.n_ctx or original))


def reach(file: GgufFile, options: ContextOptions) -> int:
    """Returns the longest conversation that a model's positions are made for, in tokens; 0 if the file does not say."""
    if not (options.rope_scaling_type or options.rope_freq_scale or options.yarn_orig_ctx):
        return _own_reach(file)
    original = options.yarn_orig_ctx or _original(file)
    if options.rope_scaling_type == "none":
        return original
    return round(original / (options.rope_freq_scale or 1 / file.shape.rope.factor))


def _own_reach(file: GgufFile) -> int:
    return max(file.shape.n_ctx_train, round(file.shape.rope.original * file.shape.rope.factor))


def _original(file: GgufFile) -> int:
    """Returns the length that positions reach unstretched; 0 if the file does not say."""
    return file.shape.rope.original or round(_own_reach(file) / file.shape.rope.factor)


def positions(file: GgufFile, options: ContextOptions) -> str:
    """Returns how far positions reach and why, in words; "" if the file says no length."""
    if not (far := reach(file, options)):
        return ""
    trained = f"trained on {file.shape.n_ctx_train:,} tokens"
    given = options.rope_scaling_type is not None or options.rope_freq_scale
    scaling = options.rope_scaling_type or file.shape.rope.scaling
    factor = 1 / options.rope_freq_scale if options.rope_freq_scale else file.shape.rope.factor
    if not file.shape.rope.rotates or scaling == "none" or (factor == 1 and scaling != "longrope"):
        return trained
    by = "as asked for" if given else "as the file says"
    stretched = f" by {factor:.6g}" if factor != 1 else ""
    original = options.yarn_orig_ctx or _original(file)
    return f"{trained}, {_NAMES.get(scaling, scaling)} ({by}) from {original:,}{stretched} to {far:,}"


def beyond(file: GgufFile, options: ContextOptions, n_ctx: int) -> str:
    """Returns a warning with the way out if positions do not reach `n_ctx`; "" if they do, or if that is not known."""
    far = reach(file, options)
    if not 0 < far < n_ctx:
        return ""
    stretch = 'llama=LlamaOptions(rope_scaling_type="yarn"), or '
    return (
        f"n_ctx={n_ctx:,} is more than this model's positions reach ({positions(file, options)}): beyond {far:,} "
        f"tokens answers get worse; pass {stretch if file.shape.rope.rotates else ''}n_ctx={far} at most"
    )
