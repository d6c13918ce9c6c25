"""Projectors (mmproj) with random numbers, models for them, and a bare context that evaluates media as libmtmd does."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from files.model_files import written
from llama_cpp import llama_cpp, mtmd_cpp
from numpy.typing import NDArray

from engine import Audio, Image
from engine.support import _data
from engine.types.media import Media

llama: Any = llama_cpp
mtmd: Any = mtmd_cpp
WIDTH = 256  # of the built-in model
_OWN_WIDTH, _HEADS, _HEAD, _INNER, _LAYERS = 128, 4, 32, 256, 2  # of the models that are written here
_D, _FF = 32, 64  # of the encoders


TILES = ("<fake_token_around_image>", "<global-img>", *(f"<row_{y}_col_{x}>" for y in (1, 2) for x in (1, 2)))
"""What Idefics3 has between the tiles of a picture."""


@dataclass(frozen=True)
class Kind:
    """A projector, and the architecture of the model that it is for; "": the built-in model. `tokens`: control tokens
    that its vocabulary has beside the built-in model's. `deepstack`: layers of the encoder whose features the model's
    first layers get."""

    projector: str
    architecture: str = ""
    image: int = 56
    tokens: tuple[str, ...] = ()
    deepstack: int = 0

    @property
    def width(self) -> int:
        return _OWN_WIDTH if self.architecture else WIDTH


KINDS = {
    "llava": Kind("mlp"),
    "gemma3": Kind("gemma3", "gemma3"),
    "qwen2vl": Kind("qwen2vl_merger", "qwen2vl"),
    "ultravox": Kind("ultravox"),
    "idefics3": Kind("idefics3", "llama", tokens=TILES),
    "qwen3vl": Kind("qwen3vl_merger", "qwen3vl", tokens=("<|vision_start|>", "<|vision_end|>"), deepstack=1),
}


def media(kind: Kind, seed: int = 0) -> Media:
    """A picture or a sound for a projector."""
    random = np.random.default_rng(seed)
    if kind.projector == "ultravox":
        return Audio(random.normal(0, 0.1, 20_000 + 4_000 * seed).clip(-1, 1).astype(np.float32), rate=16_000)
    return Image(random.integers(0, 256, (56, 84, 3), np.uint8))


def _random(seed: int) -> Any:
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * 0.1).astype(np.float32)

    return numbers


def write_model(path: Path, kind: Kind) -> Path:
    """Write a model for a projector, with the built-in vocabulary; the built-in model in float32 if it is for that."""
    if not kind.architecture:
        return _unquantized(path)
    numbers, width = _random(9), _OWN_WIDTH
    writer, source = gguf.GGUFWriter(path, kind.architecture), gguf.GGUFReader(_data.builtin_model())
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = field.contents()
            if name == "tokenizer.ggml.tokens":
                value += kind.tokens
            if name == "tokenizer.ggml.token_type":
                value += [int(gguf.TokenType.CONTROL)] * len(kind.tokens)
            writer.add_key_value(name, value, field.types[0], inner)
    words = len(source.fields["tokenizer.ggml.tokens"].data) + len(kind.tokens)
    writer.add_vocab_size(words)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    if kind.architecture == "gemma3":
        writer.add_sliding_window(512)
    if kind.architecture == "llama":
        writer.add_rope_dimension_count(_HEAD)
    if kind.architecture in ("qwen2vl", "qwen3vl"):
        writer.add_rope_dimension_sections([4, 6, 6, 0])
        writer.add_rope_dimension_count(_HEAD)
    if kind.deepstack:
        writer.add_num_deepstack_layers(kind.deepstack)
    writer.add_tensor("token_embd.weight", numbers(words, width))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(_LAYERS):
        _add_layer(writer, f"blk.{layer}.", numbers, kind.architecture)
    return written(writer, path)


def _unquantized(path: Path) -> Path:
    """Write the built-in model in float32: quantized, a row alone is rounded otherwise than among others.

    With AMX that is as much as two pictures differ.
    """
    source = gguf.GGUFReader(_data.builtin_model())
    writer = gguf.GGUFWriter(path, "qwen3")
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    return written(writer, path)


def _add_layer(writer: gguf.GGUFWriter, prefix: str, numbers: Any, architecture: str) -> None:
    ones = {"attn_norm": _OWN_WIDTH, "ffn_norm": _OWN_WIDTH}
    if architecture in ("gemma3", "qwen3vl"):
        ones |= {"attn_q_norm": _HEAD, "attn_k_norm": _HEAD}
    if architecture == "gemma3":
        ones |= {"post_attention_norm": _OWN_WIDTH, "post_ffw_norm": _OWN_WIDTH}
    for name, size in ones.items():
        writer.add_tensor(f"{prefix}{name}.weight", np.ones(size, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"{prefix}{name}.weight", numbers(_HEADS * _HEAD, _OWN_WIDTH))
        if architecture == "qwen2vl" and name != "attn_output":
            writer.add_tensor(f"{prefix}{name}.bias", numbers(_HEADS * _HEAD))
    for name, shape in {
        "ffn_gate": (_INNER, _OWN_WIDTH),
        "ffn_up": (_INNER, _OWN_WIDTH),
        "ffn_down": (_OWN_WIDTH, _INNER),
    }.items():
        writer.add_tensor(f"{prefix}{name}.weight", numbers(*shape))


def write_projector(path: Path, kind: Kind, *, width: int = 0, stack: int = 20, seed: int = 5) -> Path:
    """Write a projector. `width`: that of its rows, if it is for another model. `stack`: how many of the 1,500 steps of
    a sound make a row; with 8, which does not divide them, llama.cpp ends the process over the first sound."""
    numbers, audio = _random(seed), kind.projector == "ultravox"
    width = width or kind.width
    writer, part = gguf.GGUFWriter(path, "clip"), "audio" if audio else "vision"
    writer.add_type("mmproj")
    writer.add_bool(f"clip.has_{part}_encoder", True)
    writer.add_string("clip.projector_type", kind.projector)
    for name, value in {
        "embedding_length": _D,
        "feed_forward_length": _FF,
        "block_count": 2,
        "projection_dim": width,
        "attention.head_count": 2,
    }.items():
        writer.add_uint32(f"clip.{part}.{name}", value)
    writer.add_float32(f"clip.{part}.attention.layer_norm_epsilon", 1e-6)
    writer.add_bool("clip.use_gelu", True)
    if audio:
        _add_ultravox(writer, numbers, width, stack)
    else:
        _add_picture(writer, numbers, kind, width)
    for layer in range(2):
        _add_block(writer, f"{'a' if audio else 'v'}.blk.{layer}.", numbers, audio=audio, fused=bool(kind.deepstack))
    return written(writer, path)


def _add_block(writer: gguf.GGUFWriter, prefix: str, numbers: Any, *, audio: bool, fused: bool) -> None:
    for name in ("attn_qkv", "attn_out") if fused else ("attn_q", "attn_k", "attn_v", "attn_out"):
        outputs = 3 * _D if name == "attn_qkv" else _D
        writer.add_tensor(f"{prefix}{name}.weight", numbers(outputs, _D))
        if not (audio and name == "attn_k"):
            writer.add_tensor(f"{prefix}{name}.bias", numbers(outputs))
    writer.add_tensor(f"{prefix}ffn_up.weight", numbers(_FF, _D))
    writer.add_tensor(f"{prefix}ffn_up.bias", numbers(_FF))
    writer.add_tensor(f"{prefix}ffn_down.weight", numbers(_D, _FF))
    writer.add_tensor(f"{prefix}ffn_down.bias", numbers(_D))
    for name in ("ln1", "ln2"):
        _add_norm(writer, prefix + name)


def _add_norm(writer: gguf.GGUFWriter, name: str) -> None:
    writer.add_tensor(f"{name}.weight", np.ones(_D, np.float32))
    writer.add_tensor(f"{name}.bias", np.zeros(_D, np.float32))


def _add_ultravox(writer: gguf.GGUFWriter, numbers: Any, width: int, stack: int) -> None:
    writer.add_uint32("clip.audio.num_mel_bins", 80)
    writer.add_uint32("clip.audio.projector.stack_factor", stack)
    for number, inputs in ((1, 80), (2, _D)):
        writer.add_tensor(f"a.conv1d.{number}.weight", numbers(_D, inputs, 3).astype(np.float16))
        writer.add_tensor(f"a.conv1d.{number}.bias", numbers(_D, 1))
    writer.add_tensor("a.position_embd.weight", numbers(1500, _D))
    _add_norm(writer, "a.post_ln")
    writer.add_tensor("mm.a.norm_pre.weight", np.ones(stack * _D, np.float32))
    writer.add_tensor("mm.a.mlp.1.weight", numbers(64, stack * _D))
    writer.add_tensor("mm.a.norm_mid.weight", np.ones(32, np.float32))
    writer.add_tensor("mm.a.mlp.2.weight", numbers(width, 32))


def _add_picture(writer: gguf.GGUFWriter, numbers: Any, kind: Kind, width: int) -> None:
    patch = 14
    writer.add_uint32("clip.vision.image_size", kind.image)
    writer.add_uint32("clip.vision.patch_size", patch)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_tensor("v.patch_embd.weight", numbers(_D, 3, patch, patch))
    _add_norm(writer, "v.post_ln")
    if kind.projector in ("qwen2vl_merger", "qwen3vl_merger"):
        writer.add_uint32("clip.vision.spatial_merge_size", 2)
        writer.add_tensor("v.patch_embd.weight.1", numbers(_D, 3, patch, patch))
        _add_layers(writer, numbers, ("mm.0", "mm.2"), 4 * _D, width)
        for layer in range(kind.deepstack):
            name = f"v.deepstack.{layer}"
            writer.add_tensor(f"{name}.norm.weight", np.ones(4 * _D, np.float32))
            writer.add_tensor(f"{name}.norm.bias", np.zeros(4 * _D, np.float32))
            _add_layers(writer, numbers, (f"{name}.fc1", f"{name}.fc2"), 4 * _D, width)
    if kind.projector == "qwen2vl_merger":
        return
    writer.add_tensor("v.patch_embd.bias", numbers(_D))
    writer.add_tensor("v.position_embd.weight", numbers((kind.image // patch) ** 2, _D))
    if kind.projector == "mlp":
        _add_layers(writer, numbers, ("mm.0", "mm.2"), _D, width)
    elif kind.projector == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)
        writer.add_tensor("mm.input_projection.weight", numbers(_D, width))
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(_D, np.float32))
    elif kind.projector == "idefics3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)
        writer.add_uint32("clip.vision.preproc_image_size", kind.image * 2)
        writer.add_tensor("mm.model.fc.weight", numbers(width, 4 * _D))


def _add_layers(writer: gguf.GGUFWriter, numbers: Any, names: tuple[str, str], inner: int, width: int) -> None:
    for name, outputs in zip(names, (inner, width), strict=True):
        writer.add_tensor(f"{name}.weight", numbers(outputs, inner))
        writer.add_tensor(f"{name}.bias", numbers(outputs))


class Bare:
    """A model, a projector and a context without the engine, as libmtmd's own helper uses them."""

    def __init__(self, model: Path, projector: Path, rows: int = 512) -> None:
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = llama.llama_model_load_from_file(str(model).encode(), params)
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_threads = 2048, rows, rows, 1
        context.n_threads_batch = 1
        context.flash_attn_type = 0
        self._context = llama.llama_init_from_model(self._model, context)
        own = mtmd.mtmd_context_params_default()
        own.use_gpu = own.print_timings = own.warmup = False
        own.n_threads = 1
        self._mtmd = mtmd.mtmd_init_from_file(str(projector).encode(), self._model, own)
        assert self._mtmd
        self._rows = rows

    def evaluate(self, parts: list[bytes | Media]) -> tuple[NDArray[np.float32], list[tuple[int, int, int]], int]:
        """Returns the logits after the last part, and of each chunk its type, rows and positions, and the number of
        positions in all."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        kept: list[Any] = []
        pointer: Any = cast("Any", ctypes.POINTER)(mtmd.mtmd_input_part)
        inputs = (pointer * len(parts))()
        for number, part in enumerate(parts):
            made = mtmd.mtmd_input_part()
            if isinstance(part, bytes):
                text = mtmd.mtmd_input_text(part, len(part), False, True)
                made.text = ctypes.pointer(text)
                kept.append(text)
            else:
                made.bitmap = self._bitmap(part)
            kept.append(made)
            inputs[number] = ctypes.pointer(made)
        chunks = mtmd.mtmd_input_chunks_init()
        assert mtmd.mtmd_tokenize_from_parts(self._mtmd, chunks, inputs, len(parts), False) == 0
        found: list[tuple[int, int, int]] = []
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            sizes = mtmd.mtmd_input_chunk_get_n_tokens(chunk), mtmd.mtmd_input_chunk_get_n_pos(chunk)
            found.append((mtmd.mtmd_input_chunk_get_type(chunk), *sizes))
        past = llama.llama_pos(0)
        code = mtmd.mtmd_helper_eval_chunks(
            self._mtmd, self._context, chunks, 0, 0, self._rows, True, ctypes.byref(past)
        )
        assert code == 0
        words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(self._context, -1), (words,)).copy()
        return logits, found, past.value

    def logits(self, parts: Sequence[Sequence[int] | Media], rows: int) -> NDArray[np.float32]:
        """Returns the logits after the last token; tokens are evaluated so many rows at a time, and so are media whose
        rows do not see one another."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        past = 0
        for part in parts:
            if isinstance(part, Audio | Image):
                past = self._media(part, past, rows)
                continue
            for start in range(0, len(part), rows):
                self._decode(part[start : start + rows], past + start)
            past += len(part)
        words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        return np.ctypeslib.as_array(llama.llama_get_logits_ith(self._context, -1), (words,)).copy()

    def _media(self, part: Media, past: int, rows: int) -> int:
        """Evaluate a picture or a sound from this position on; returns the position after it."""
        made = mtmd.mtmd_input_part(bitmap=self._bitmap(part))
        inputs = (cast("Any", ctypes.POINTER)(mtmd.mtmd_input_part) * 1)(ctypes.pointer(made))
        chunks, after = mtmd.mtmd_input_chunks_init(), llama.llama_pos(past)
        assert mtmd.mtmd_tokenize_from_parts(self._mtmd, chunks, inputs, 1, False) == 0
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            size = self._rows if mtmd.mtmd_decode_use_non_causal(self._mtmd, chunk) else rows
            code = mtmd.mtmd_helper_eval_chunk_single(
                self._mtmd, self._context, chunk, after.value, 0, size, False, ctypes.byref(after)
            )
            assert code == 0
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(made.bitmap)
        return after.value

    def _decode(self, tokens: Sequence[int], past: int) -> None:
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, past + row, 1
            batch.seq_id[row][0], batch.logits[row] = 0, row == len(tokens) - 1
        batch.n_tokens = len(tokens)
        assert llama.llama_decode(self._context, batch) == 0
        llama.llama_batch_free(batch)

    @staticmethod
    def _bitmap(part: Media) -> Any:
        if isinstance(part, Audio):
            samples = part.resampled(16_000)
            return mtmd.mtmd_bitmap_init_from_audio(
                len(samples), samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            )
        pixels = (ctypes.c_uint8 * len(part.rgb)).from_buffer_copy(part.rgb)
        return mtmd.mtmd_bitmap_init(part.width, part.height, pixels)

    def close(self) -> None:
        mtmd.mtmd_free(self._mtmd)
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)
