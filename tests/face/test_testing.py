"""engine.testing: the byte vocabulary, and the books that ScriptedBackend keeps."""

import pytest

from engine.errors import DecodeError, EngineError
from engine.parsing.reader import Piece
from engine.runtime.backend import Backend, Row
from engine.testing import ByteVocab, ScriptedBackend
from engine.types import SamplingParams


def rows(tokens: list[int], sequence: int = 0, start: int = 0) -> list[Row]:
    return [Row(token, start + index, sequence, index == len(tokens) - 1) for index, token in enumerate(tokens)]


def say(backend: ScriptedBackend, prompt: str, sequence: int = 0) -> str:
    """Prefill a prompt and draw until the end token: the shortest loop over a backend."""
    sampler = backend.sampler(SamplingParams())
    batch = rows(backend.vocab.tokenize(prompt, special=True), sequence, backend.positions(sequence))
    out: list[int] = []
    while True:
        backend.decode(batch)
        token = backend.sample(sampler, len(batch) - 1)
        if backend.vocab.is_end(token):
            return backend.vocab.text(out)
        out.append(token)
        batch = rows([token], sequence, backend.positions(sequence))


def test_vocab_tokens_and_bytes() -> None:
    vocab = ByteVocab(["<|im_start|>", "<|im|>"], end=["<|im_end|>"], bos="<s>")
    assert vocab.size == 260
    assert vocab.control_tokens == {"<|im_start|>", "<|im|>", "<|im_end|>", "<s>"}
    text = "<|im_start|>é<|im|>"
    tokens = vocab.tokenize(text, special=True)
    assert tokens == [vocab.token("<|im_start|>"), 0xC3, 0xA9, vocab.token("<|im|>")]
    assert vocab.text(tokens) == text
    assert vocab.tokenize(text, special=False) == list(text.encode())
    assert [vocab.is_special(token) for token in tokens] == [True, False, False, True]
    assert vocab.is_end(vocab.token("<|im_end|>"))
    assert not vocab.is_end(tokens[0])
    assert vocab.end == vocab.token("<|im_end|>")


def test_vocab_encode_guards_plain_pieces() -> None:
    vocab = ByteVocab(["<x>"], bos="<s>")
    pieces = [Piece("<x>", special=True), Piece("<x>")]
    assert vocab.encode(pieces, add_bos=True) == [vocab.token("<s>"), vocab.token("<x>"), *b"<x>"]
    assert ByteVocab().encode([Piece("a")], add_bos=True) == [97]


def test_vocab_needs_an_end() -> None:
    with pytest.raises(ValueError, match="end token"):
        ByteVocab(end=[])


def test_is_a_backend() -> None:
    backend: Backend = ScriptedBackend([])
    backend.close()
    assert isinstance(backend, ScriptedBackend)
    assert backend.closed


def test_replies_in_order_and_control_tokens() -> None:
    backend = ScriptedBackend(["one<|call|>x", "two"], vocab=ByteVocab(["<|call|>"]))
    assert say(backend, "a", 0) == "one<|call|>x"
    assert say(backend, "b", 1) == "two"
    with pytest.raises(EngineError, match="2 replies and request 3"):
        say(backend, "c", 2)


def test_reply_function_sees_the_prompt() -> None:
    backend = ScriptedBackend(lambda prompt: prompt[::-1])
    assert say(backend, "abc") == "cba"


def test_a_function_is_asked_again_after_forced_tokens() -> None:
    backend = ScriptedBackend(lambda text: "aaaa" if "!" not in text else "bb")
    sampler = backend.sampler(SamplingParams())
    backend.decode(rows([1]))
    assert backend.sample(sampler, 0) == ord("a")
    sampler.accept(ord("!"))
    backend.decode(rows([ord("a"), ord("!")], start=1))
    assert backend.sample(sampler, 1) == ord("b")


def test_a_list_goes_on_after_forced_tokens() -> None:
    backend = ScriptedBackend(["ab"])
    sampler = backend.sampler(SamplingParams())
    sampler.accept(1)  # a token of the prompt, told before anything was drawn, changes nothing
    backend.decode(rows([1]))
    assert backend.sample(sampler, 0) == ord("a")
    sampler.accept(ord("!"))
    backend.decode(rows([ord("a"), ord("!")], start=1))
    assert backend.sample(sampler, 1) == ord("b")


def test_a_draw_from_the_wrong_sequence_is_noticed() -> None:
    backend = ScriptedBackend(["ab"])
    sampler = backend.sampler(SamplingParams())
    backend.decode(rows([1]))
    backend.sample(sampler, 0)
    backend.decode(rows([ord("z")], start=1))
    with pytest.raises(EngineError, match="mixed up"):
        backend.sample(sampler, 0)


def test_a_draw_needs_output_and_an_own_sampler() -> None:
    backend = ScriptedBackend(["ab"])
    backend.decode(rows([1, 2]))
    with pytest.raises(EngineError, match="without output"):
        backend.sample(backend.sampler(SamplingParams()), 0)

    class Foreign:
        def accept(self, token: int) -> None: ...

        def close(self) -> None: ...

    with pytest.raises(EngineError, match="not made by this backend"):
        backend.sample(Foreign(), 1)


def test_cells_are_shared_and_counted_once() -> None:
    backend = ScriptedBackend([], n_ctx=10)
    backend.decode(rows([1, 2, 3, 4]))
    backend.copy(0, 1, 3)
    assert backend.used == 4
    assert backend.tokens(1) == [1, 2, 3]
    backend.decode(rows([9], 1, 3))
    assert backend.used == 5
    assert backend.tokens(0) == [1, 2, 3, 4]
    assert backend.trim(0, 0)
    assert backend.used == 4
    assert backend.trim(1, 2)
    assert backend.used == 2
    assert backend.positions(1) == 2
    assert backend.trim(1, 0)
    assert backend.used == 0
    backend.decode(rows([1]))
    with pytest.raises(DecodeError, match="not empty"):
        backend.copy(0, 0, 1)


def test_decode_refuses_what_llama_cpp_refuses() -> None:
    backend = ScriptedBackend([], n_ctx=4, kv_tokens=4, n_batch=3)
    with pytest.raises(DecodeError, match="n_batch"):
        backend.decode(rows([1, 2, 3, 4]))
    with pytest.raises(DecodeError, match="n_batch"):
        backend.decode([])
    with pytest.raises(DecodeError, match="position 0, not at 1"):
        backend.decode(rows([1], start=1))
    backend.decode(rows([1, 2, 3]))
    with pytest.raises(DecodeError, match="3 of 4 cells"):
        backend.decode(rows([1, 2], 1))
    assert backend.used == 3
    assert backend.positions(1) == 0
    assert backend.decodes == 5
    assert backend.evaluated == 3
    assert backend.batches == [4, 0, 1, 3, 2]


def test_recurrent_memory_is_whole_or_nothing() -> None:
    backend = ScriptedBackend([], trimmable=False)
    backend.decode(rows([1, 2, 3]))
    assert not backend.trim(0, 2)
    assert backend.positions(0) == 3
    assert backend.trim(0, 3)
    with pytest.raises(DecodeError, match="complete sequence"):
        backend.copy(0, 1, 2)
    backend.copy(0, 1, 3)
    assert backend.trim(0, 0)
    assert backend.positions(0) == 0
    assert backend.tokens(1) == [1, 2, 3]


def test_hooks() -> None:
    seen: list[int] = []

    def fail(batch: object) -> None:
        seen.append(1)
        raise DecodeError("no")

    backend = ScriptedBackend([], before_decode=fail, delay=0.0001)
    with pytest.raises(DecodeError, match="no"):
        backend.decode(rows([1]))
    backend.before_decode = None
    backend.decode(rows([1]))
    assert seen == [1]
    assert backend.decodes == 2
    assert backend.evaluated == 1
