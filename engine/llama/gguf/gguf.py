"""Reads what a GGUF says about itself before llama.cpp sees it, so that a bad file is refused with a reason.

Reads the header only; the tensor table gives the length that the file must have.
"""

import hashlib
import math
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.llama.gguf.gguf_charsmap import check_charsmap
from engine.llama.gguf.gguf_header import (
    TOKEN_TYPES,
    Header,
    Tensor,
    damaged,
    file_type_name,
    read_header,
    reading,
    tensor_type_name,
)
from engine.llama.gguf.gguf_rules import MAX_LAYERS, verified
from engine.support import paths
from engine.support.errors import ModelLoadError

# Architectures that encode text, or are parts of a model; llama.cpp loads them and then cannot generate.
_ENCODERS = frozenset(
    ("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
     "gemma-embedding")
)  # fmt: skip
"""Architectures that see a text in both directions and make vectors of it."""
_NOT_CHAT = {
    "t5": "an encoder-decoder model",
    "t5encoder": "the encoder of an encoder-decoder model",
    "clip": "a vision or audio projector (mmproj)",
    "wavtokenizer-dec": "an audio decoder",
}
_NOT_MODEL = {"adapter": "a LoRA adapter", "mmproj": "a vision or audio projector", "imatrix": "an importance matrix"}
_POOLING = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""Values of enum llama_pooling_type; 0 is none, and -1 (as 2**32 - 1) not said, as llama.cpp saves it."""
_MARKERS = (2, 3, 4)  # enum llama_token_type: unknown, control, user-defined
_MOST_SQUARES = 1 << 27
"""The largest sum of the squared lengths of a vocabulary's markers: 2,000 of 2 kB took 0.5 GB in a chat."""
_NO_TOKENIZER = ("none", "no_vocab", "test")
_BOTH_WAYS = ("dream", "llada", "llada-moe", "rnd1")
"""Architectures of diffusion models, which are refused as such once they are loaded."""
_MOST_BASES = 4
_SAMPLES, _SAMPLE = 32, 1 << 16  # the number of samples of a file for its digest, and their length in bytes
_EMBEDDINGS = "token_embd.weight"
_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.")
_WINDOW_PERIODS = {
    **dict.fromkeys(("afmoe", "cohere2", "exaone-moe", "exaone4", "mellum", "muse-glimmer", "olmo2"), (4, False)),
    **dict.fromkeys(("cohere2moe", "smallthinker"), (4, True)),
    **dict.fromkeys(("gemma2", "gpt-oss"), (2, False)),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "plamo3": (8, False),
}
"""If a file does not say: the period of layers that see all tokens, and whether that is the first layer of each
period."""
_WITHOUT_ROPE = frozenset(
    ("gpt2", "gptj", "mpt", "refact", "bloom", "mamba", "mamba2", "jamba", "jina-bert-v2", "jais", "rwkv6",
     "rwkv6qwen2", "rwkv7", "arwkv7", "nemotron_h", "nemotron_h_moe", "kimi-linear", "kimi-k3", "glm5-next")
)  # fmt: skip
"""Architectures that do not rotate by position (llama-model.cpp, `llama_model_rope_type`); nor do those with learned
positions."""
_SAMPLING = "general.sampling."
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class NamedTemplate:
    """A chat template in addition to the default one, such as "tool_use"."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of one layer that determine memory: elements of its `queries`, `keys` and `values` per token; whether
    it has a sliding window (`windowed`); elements of one `head`'s keys, of its recurrent `state` per sequence, and of
    the values that a recurrent layer computes per token (`inner`); bytes of its `weights`."""

    keys: int
    values: int
    windowed: bool
    head: int
    queries: int = 0
    state: int = 0
    inner: int = 0
    weights: int = 0


class Rope(NamedTuple):
    """How a file encodes positions. `rotates`: by rotary embeddings (RoPE). `scaling`: how those are stretched, by
    `factor`, and the `original` length in tokens from which they are (0 if the file does not say)."""

    rotates: bool = True
    scaling: str = "linear"
    factor: float = 1.0
    original: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model's weights, from which its memory follows.

    - `n_ctx_train`: tokens, 0 if the file does not say. `turns_by_length`: the encoding of positions depends on the
      length of the context (LongRoPE). `n_positions`: the number of learned position embeddings, beyond which llama.cpp
      ends the process (0: positions are computed).
    - `matrices`: bytes of matrices by tensor type; `output`: bytes of the output matrix; `tied`: the same if that is
      also the embedding matrix, else 0.
    - `n_ff_expert`, `n_experts_used`: 0 without experts; `has_dense`: some layers have none; `is_gated`: its
      feed-forward layers multiply two matrices.
    - `pooling`: how an embedding model makes one vector of a text ("" for other models); `is_causal`: each token sees
      only those before it.
    - `nextn_layers`: the last of its layers, which are heads for the next tokens (MTP, NextN).
    """

    n_ctx_train: int
    turns_by_length: bool
    n_embd: int
    n_ff: int
    n_head: int
    sliding_window: int
    layers: tuple[Layer, ...]
    matrices: Mapping[str, int]
    output: int
    tied: int
    tied_type: str
    n_ff_expert: int
    n_experts_used: int
    has_dense: bool
    n_positions: int
    pooling: str
    is_causal: bool
    is_gated: bool
    nextn_layers: int
    rope: Rope


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says of tokens: how many there are, the `kind` of the vocabulary, which has `n_merges`; the chat
    templates; `sampling`, what it states below `general.sampling.` (NaN for a value that is no number)."""

    n_vocab: int
    kind: str
    n_merges: int
    chat_template: str | None
    named_templates: tuple[NamedTemplate, ...]
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked model file: the facts needed to describe it and to estimate its memory.

    `parts` are all files of a split model, in order. `weights` is bytes; of them each token reads about `active`: of
    experts, those that are used. `base_models`: the addresses of the
    repositories that it was made from. `is_verified`: it is certain that llama.cpp survives this header.
    """

    path: Path
    parts: tuple[Path, ...]
    architecture: str
    name: str
    quantization: str
    parameters: int
    weights: int
    active: int
    base_models: tuple[str, ...]
    is_verified: bool
    shape: Shape
    tokens: Vocabulary

    @property
    def is_encoder(self) -> bool:
        """Whether it keeps no memory between decodes."""
        return self.architecture in _ENCODERS

    @property
    def embeds(self) -> bool:
        """Whether this is an embedding model or a reranker, which makes vectors and does not generate."""
        return bool(self.shape.pooling) or not self.shape.is_causal


def read_gguf(path: str | Path) -> GgufFile:
    """Read the model in a file. Raises ModelLoadError, saying what to do, if it is not a complete chat model in
    GGUF."""
    file = Path(path).expanduser()
    check_is_file(file)
    header = read_header(file)
    parts = _parts(file, header)
    headers = (header, *(read_header(part) for part in parts[1:]))
    return described(parts, headers)


def described(parts: tuple[Path, ...], headers: tuple[Header, ...]) -> GgufFile:
    """Describe a model from the headers of all its parts, in order. Raises ModelLoadError as `read_gguf` does."""
    file, header = parts[0], headers[0]
    for part, each in zip(parts, headers, strict=True):
        check_whole(part, each)
    _check_model(file, header, sum(len(each.tensors) for each in headers))
    _check_markers(file, header)
    check_charsmap(file, header)
    return _describe(file, parts, headers)


def sample_digest(model: GgufFile) -> str:
    """Returns a SHA-256 (hex) over the sizes of all parts and samples spread over them; reads a few MiB of any file."""
    digest = hashlib.sha256()
    for part in model.parts:
        with reading(part), part.open("rb") as file:
            size = part.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            for index in range(_SAMPLES):
                file.seek(size * index // _SAMPLES)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def check_is_file(file: Path) -> None:
    """Raise ModelLoadError for a path that is not a regular file."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelLoadError(
            f"There is no file {file}; check the path, or name a model of the Hugging Face Hub: owner/repo:Q4_K_M."
        ) from error
    except OSError as error:
        raise ModelLoadError(
            f"{file} cannot be read ({error.strerror}); check the path and its permissions."
        ) from error
    except ValueError as error:  # a NUL
        raise ModelLoadError(f"{str(file)!r} is not a path ({error}); pass the path of a .gguf file.") from error
    if stat.S_ISDIR(mode):
        raise ModelLoadError(f"{file} is a directory, not a model{_models_in(file)}.")
    if not stat.S_ISREG(mode):
        raise ModelLoadError(
            f"{file} is a pipe, a socket or a device, but llama.cpp maps models from files; save it to a file first."
        )


def _models_in(directory: Path) -> str:
    try:
        models = sorted(directory.glob("*.gguf"))
    except OSError:
        models = []
    return f"; pass one of the files in it, for example {models[0]}" if models else "; pass the path of a .gguf file"


def _parts(file: Path, header: Header) -> tuple[Path, ...]:
    count = header.integer("split.count", 1)
    if count <= 1:
        return (file,)
    match = _SPLIT_NAME.match(file.name)
    if match is None or int(match["count"]) != count:
        raise ModelLoadError(
            f"{file} is one of {count} parts of a model, but is not named like one; rename the parts to "
            f"<name>-00001-of-{count:05d}.gguf and so on, as they were published."
        )
    parts = tuple(file.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1))
    with reading(file):
        missing = [part.name for part in parts if not paths.is_file(part)]
    if missing:
        raise ModelLoadError(
            f"{file} has {count} parts, but {', '.join(missing)} is missing; put all of them into {file.parent}."
        )
    if header.integer("split.no", 0) != 0:
        raise ModelLoadError(f"{file} is not the first of its {count} parts; pass {parts[0]}.")
    return parts


def check_whole(file: Path, header: Header) -> None:
    """Raise ModelLoadError for a file that is shorter than its tensor table says."""
    if header.file_size < header.expected_size:
        raise ModelLoadError(
            f"{file} is cut off: it has {header.file_size:,} bytes, but its tensor table needs "
            f"{header.expected_size:,}; download it again."
        )


def _check_markers(file: Path, header: Header) -> None:
    """Refuse control and user-defined tokens of which the guard of callers' texts would take all memory."""
    kinds = header.integers(TOKEN_TYPES, 0)
    marked = (text for text, kind in zip(header.tokens, kinds, strict=False) if kind in _MARKERS)
    if sum(len(text) ** 2 for text in marked) > _MOST_SQUARES:
        raise damaged(file, "its control and user-defined tokens are too many and too long")


def _sampling(header: Header) -> dict[str, float]:
    """Returns what a file states about sampling; NaN for a value that is no number."""
    keys = [key for key in header.keys_under(_SAMPLING) if not header.text(key)]
    return {key.removeprefix(_SAMPLING): header.number(key, math.nan) for key in keys}


def kind_of(header: Header) -> str:
    """Returns what a file is, as its header states it, for people."""
    architecture, parts = header.text("general.architecture"), header.integer("split.count", 1)
    if known := _NOT_MODEL.get(header.text("general.type")) or _NOT_CHAT.get(architecture):
        return known
    if parts > 1:
        return f"part {header.integer('split.no', 0) + 1} of {parts} of a model"
    return "a model" if header.tensors else "a vocabulary only"


def _check_model(file: Path, header: Header, tensors: int) -> None:
    kind, architecture = header.text("general.type"), header.text("general.architecture")
    if kind in _NOT_MODEL:
        raise ModelLoadError(f"{file} is {_NOT_MODEL[kind]}, not a model; pass the model's own GGUF.")
    if not architecture:
        raise ModelLoadError(
            f"{file} does not name its architecture; convert the model again with llama.cpp's converter."
        )
    if architecture in _NOT_CHAT:
        raise ModelLoadError(
            f"{file} is {_NOT_CHAT[architecture]} ({architecture}): it neither generates text nor makes vectors; pass "
            "the GGUF of a chat model or of an embedding model."
        )
    if tensors == 0:
        raise ModelLoadError(f"{file} holds a vocabulary only, no weights; pass the model's full GGUF.")
    if (tokenizer := header.text("tokenizer.ggml.model")) in _NO_TOKENIZER:
        raise ModelLoadError(
            f"{file} has no tokenizer (tokenizer.ggml.model is {tokenizer!r}): text cannot become tokens. Pass a GGUF "
            "that was converted with its tokenizer."
        )
    layers = header.integer(f"{architecture}.block_count", 0)
    if not 0 < layers <= MAX_LAYERS:
        raise damaged(file, f"{architecture}.block_count is {layers}; 1 to {MAX_LAYERS} are possible")


def _describe(file: Path, parts: tuple[Path, ...], headers: tuple[Header, ...]) -> GgufFile:
    header = headers[0]
    architecture = header.text("general.architecture")
    tensors = [tensor for each in headers for tensor in each.tensors]
    shape = _shape(header, architecture, tensors)
    if shape.pooling == "rank":
        _check_classifier(file, header, architecture, tensors)
    return GgufFile(
        path=file,
        parts=parts,
        architecture=architecture,
        name=header.text("general.name") or file.stem,
        quantization=_quantization(header, headers),
        parameters=sum(tensor.elements for tensor in tensors),
        weights=sum(tensor.size for tensor in tensors),
        active=_active(header, architecture, tensors),
        base_models=tuple(
            filter(None, (header.text(f"general.base_model.{number}.repo_url") for number in range(_MOST_BASES)))
        ),
        is_verified=verified(headers) and shape.is_causal and not shape.pooling,
        shape=shape,
        tokens=_vocabulary(header, architecture),
    )


def _active(header: Header, architecture: str, tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of weights that a token reads: of experts the share that is used."""
    experts = sum(tensor.size for tensor in tensors if "_exps." in tensor.name)
    count = max(1, header.integer(f"{architecture}.expert_count", 1))
    used = min(count, header.integer(f"{architecture}.expert_used_count", count))
    return sum(tensor.size for tensor in tensors) - experts + experts * used // count


def _vocabulary(header: Header, architecture: str) -> Vocabulary:
    prefix = "tokenizer.chat_template."
    return Vocabulary(
        n_vocab=header.count("tokenizer.ggml.tokens") or header.integer(f"{architecture}.vocab_size", 0),
        kind=header.text("tokenizer.ggml.model"),
        n_merges=header.count("tokenizer.ggml.merges"),
        chat_template=header.text("tokenizer.chat_template") or None,
        named_templates=tuple(
            NamedTemplate(key.removeprefix(prefix), header.text(key)) for key in header.keys_under(prefix)
        ),
        sampling=_sampling(header),
    )


def _shape(header: Header, architecture: str, tensors: Sequence[Tensor]) -> Shape:
    tied = _tied(tensors)
    n_ff = header.integer(f"{architecture}.feed_forward_length", 0)
    n_positions = next((tensor.shape[-1] for tensor in tensors if tensor.name == "position_embd.weight"), 0)
    return Shape(
        n_ctx_train=header.integer(f"{architecture}.context_length", 0),
        turns_by_length=any(tensor.name.endswith("rope_factors_long.weight") for tensor in tensors),
        n_embd=header.integer(f"{architecture}.embedding_length", 0),
        n_ff=n_ff,
        n_head=max(header.integers(f"{architecture}.attention.head_count", 0)),
        sliding_window=header.integer(f"{architecture}.attention.sliding_window", 0),
        layers=_layers(header, architecture, tensors),
        matrices=_matrices(tensors, tied),
        output=tied.size if tied else sum(tensor.size for tensor in tensors if tensor.name == "output.weight"),
        tied=tied.size if tied else 0,
        tied_type=tensor_type_name(tied.type) if tied else "",
        n_ff_expert=header.integer(f"{architecture}.expert_feed_forward_length", n_ff),
        n_experts_used=header.integer(f"{architecture}.expert_used_count", 0),
        has_dense=any(tensor.name.endswith((".ffn_up.weight", ".ffn_gate.weight")) for tensor in tensors),
        n_positions=n_positions,
        pooling=_POOLING.get(header.integer(f"{architecture}.pooling_type", 0), ""),
        is_causal=_is_causal(header, architecture),
        is_gated=any(
            tensor.name.endswith(".ffn_gate.weight")
            or (tensor.name.endswith(".ffn_up.weight") and tensor.shape[-1] > n_ff)  # both in one matrix
            for tensor in tensors
        ),
        nextn_layers=_nextn_layers(header, architecture, tensors),
        rope=_rope(header, architecture, n_positions),
    )


def _nextn_layers(header: Header, architecture: str, tensors: Sequence[Tensor]) -> int:
    """Returns the number of heads for the next tokens; 0 if the file declares them and leaves them out."""
    count = header.integer(f"{architecture}.nextn_predict_layers", 0)
    held = any(tensor.name.endswith(".nextn.eh_proj.weight") for tensor in tensors)
    return count if held and 0 < count < header.integer(f"{architecture}.block_count", 0) else 0


def _rope(header: Header, architecture: str, n_positions: int) -> Rope:
    """Returns what a file says of its positions, with llama.cpp's defaults (llama-model.cpp, `load_hparams`)."""
    key = f"{architecture}.rope.scaling."
    factor = header.number(f"{key}factor", header.number(f"{architecture}.rope.scale_linear", 0))
    return Rope(
        architecture not in _WITHOUT_ROPE and not n_positions,
        header.text(f"{key}type") or "linear",
        factor if 0 < factor < math.inf else 1.0,
        header.integer(f"{key}original_context_length", 0),
    )


def _check_classifier(file: Path, header: Header, architecture: str, tensors: Sequence[Tensor]) -> None:
    """Refuse a reranker whose scores would be read out of something else (llama-graph.cpp, `build_pooling`)."""
    labels = max(1, header.count(f"{architecture}.classifier.output_labels"))
    last = {tensor.name: tensor.shape[-1] for tensor in tensors if tensor.name in ("cls.weight", "cls.output.weight")}
    if last.get("cls.output.weight", last.get("cls.weight")) != labels:
        raise damaged(file, f"it pools with a classifier of {labels} classes, and has no tensor for that")
    if labels == 1 and architecture in ("qwen3", "qwen3vl"):
        raise damaged(file, "its classifier has one class, of which llama.cpp makes the same score for every text")


def _is_causal(header: Header, architecture: str) -> bool:
    if architecture in _ENCODERS:
        return False
    return architecture in _BOTH_WAYS or header.number(f"{architecture}.attention.causal", 1) != 0


def _quantization(header: Header, headers: tuple[Header, ...]) -> str:
    """Returns the name of general.file_type; without it, the tensor type that takes the most bytes."""
    named = file_type_name(header.integer("general.file_type", -1))
    if named:
        return named
    sizes: dict[int, int] = {}
    for tensor in (tensor for each in headers for tensor in each.tensors):
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size
    return tensor_type_name(max(sizes, key=lambda kind: sizes[kind]))


def _tied(tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns the embedding matrix if it is also the output matrix, else None."""
    if any(tensor.name == "output.weight" for tensor in tensors):
        return None
    return next((tensor for tensor in tensors if tensor.name == _EMBEDDINGS), None)


def _matrices(tensors: Sequence[Tensor], tied: Tensor | None) -> dict[str, int]:
    """Returns the bytes, by tensor type, that llama.cpp may repack (ggml-cpu/repack.cpp): rows in multiples of
    eight."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        looked_up = tensor.name.endswith("_embd.weight") and tensor is not tied
        if 2 <= len(tensor.shape) <= 3 and tensor.shape[1] % 8 == 0 and not looked_up:
            name = tensor_type_name(tensor.type)
            sizes[name] = sizes.get(name, 0) + tensor.size
    return sizes


def _layers(header: Header, architecture: str, tensors: Sequence[Tensor]) -> tuple[Layer, ...]:
    """Returns the sizes of each layer (llama.cpp: hparams n_embd_k_gqa, n_embd_v_gqa). In a hybrid, layers without key
    heads are the recurrent ones; in other recurrent models all layers keep a state."""

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    count = header.integer(key("block_count"), 0)
    heads = header.integers(key("attention.head_count"), 0)
    kv_heads = header.integers(key("attention.head_count_kv"), -1)
    default = header.integer(key("embedding_length"), 0) // max(1, *heads)
    latent = header.integer(key("attention.key_length_mla"), 0) > 0
    interval = header.integer(key("full_attention_interval"), 0)
    shared = header.integer(key("attention.shared_kv_layers"), 0)
    windows = _windows(header, architecture, count)
    sizes = _sizes(tensors, count)
    state, inner = _recurrent(header, architecture)
    attends: list[int] = []
    for index in range(count):
        n = kv_heads[index % len(kv_heads)]
        n = heads[index % len(heads)] if n < 0 else n
        attends.append(0 if interval and (index + 1) % interval else n)
    is_hybrid = any(attends) and not all(attends)
    layers: list[Layer] = []
    for index, n in enumerate(attends):
        of_window = "_swa" if windows[index] else ""
        length_k, length_v = (
            header.integer(key(f"attention.{kind}_length{of_window}"), header.integer(key(f"attention.{kind}_length"),
                                                                                      default))
            for kind in ("key", "value")
        )  # fmt: skip
        recurs = not (is_hybrid and n)
        kept = 0 if index >= count - shared else n
        layers.append(
            Layer(
                keys=kept * length_k,
                values=0 if latent else kept * length_v,
                windowed=windows[index],
                head=length_k,
                queries=heads[index % len(heads)] * length_k if n else 0,
                state=state if recurs else 0,
                inner=inner if recurs else 0,
                weights=sizes[index],
            )
        )
    return tuple(layers)


def _windows(header: Header, architecture: str, count: int) -> list[bool]:
    """Returns for each layer whether it has a sliding window: as the file says, by layer or by period, or as llama.cpp
    assumes for the architecture (src/models, `load_swa_pattern`)."""
    told = header.integers(f"{architecture}.attention.sliding_window_pattern", -1)
    if len(told) > 1:
        return [bool(told[index % len(told)]) for index in range(count)]
    period, whole_first = _WINDOW_PERIODS.get(architecture, (1, False))
    first = next(iter(told), -1)
    period = period if first < 0 or period == 1 else first
    if not header.integer(f"{architecture}.attention.sliding_window", 0):
        return [False] * count
    seen = 0 if whole_first else period - 1
    return [period != 1 and (period == 0 or index % period != seen) for index in range(count)]


def _sizes(tensors: Sequence[Tensor], count: int) -> list[int]:
    """Returns the bytes of each layer's weights."""
    sizes = [0] * count
    for tensor in tensors:
        found = _OF_LAYER.match(tensor.name)
        if found and int(found[1]) < count:
            sizes[int(found[1])] += tensor.size
    return sizes


def _recurrent(header: Header, architecture: str) -> tuple[int, int]:
    """Returns the elements of one recurrent layer's state per sequence (llama.cpp: hparams n_embd_r, n_embd_s), and of
    the values that it computes per token: for state-space layers (ssm.*), RWKV's (wkv.*), short convolutions and delta
    attention."""

    def key(name: str) -> int:
        return header.integer(f"{architecture}.{name}", 0)

    width, inner, state = key("embedding_length"), key("ssm.inner_size"), key("ssm.state_size")
    convolution = max(0, key("ssm.conv_kernel") - 1)
    if head := key("wkv.head_size"):
        return width * (head + max(1, header.integer(f"{architecture}.token_shift_count", 2))), 3 * width
    if length := key("shortconv.l_cache"):
        return max(0, length - 1) * width, 0
    if head := key("kda.head_dim"):
        heads = key("attention.head_count")
        return head * heads * (head + 3 * (convolution or 3)), head * heads
    return inner * state + convolution * (inner + 2 * key("ssm.group_count") * state), inner
