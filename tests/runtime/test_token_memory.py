"""engine.runtime.cache.token_memory: generated tokens stand in for retokenised ones; nothing can be forged by that."""

from fakes.doubles import plain
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.cache.token_memory import TurnMemory
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.prompt import Piece, Prompt


class PairVocab(ByteVocab):
    """A vocabulary with several ways to spell a text: beside the bytes, some pairs are one token, taken greedily."""

    def __init__(self) -> None:
        super().__init__(["<a>", "<u>"], end=["<e>"])
        self.first = super().size
        self.pairs = [b"ab", b"ba", b"aa", b"  ", b"\xc3\xa9"]

    @property
    def size(self) -> int:
        return self.first + len(self.pairs)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        tokens: list[int] = []
        for token in super().tokenize(text, special=special):
            both = bytes([tokens[-1], token]) if tokens and tokens[-1] < 256 and token < 256 else b""
            if both in self.pairs:
                tokens[-1] = self.first + self.pairs.index(both)
            else:
                tokens.append(token)
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return super().token_bytes(token) if token < self.first else self.pairs[token - self.first]

    def is_special(self, token: int) -> bool:
        return 256 <= token < self.first

    def text(self, tokens: object) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")  # pyright: ignore[reportArgumentType]


VOCAB = PairVocab()


def encode(text: str) -> tuple[int, ...]:
    return tuple(VOCAB.encode([Piece(text, trusted=True)], add_bos=False))


def test_the_vocabulary_of_this_test_is_ambiguous() -> None:
    assert encode("aab") == (VOCAB.first + 2, ord("b"))
    assert VOCAB.text(encode("xabé <a>")) == "xabé <a>"


def test_a_turn_s_own_tokens_come_back() -> None:
    memory = TurnMemory(VOCAB)
    prompt, output = encode("<u>hi<a>"), (ord("a"), VOCAB.first)
    memory.remember("<u>hi<a>", prompt, output)
    text = "<u>hi<a>aab<e><u>more<a>"
    own = encode(text)
    assert own[: len(prompt) + 2] != prompt + output, "retokenised it is cut otherwise"
    assert memory.splice(text, own) == prompt + output + encode("<e><u>more<a>")


def test_the_longest_turn_wins_and_turns_build_on_each_other() -> None:
    memory = TurnMemory(VOCAB)
    first = (*encode("<u>1<a>"), ord("a"), ord("a"))
    memory.remember("<u>1<a>", encode("<u>1<a>"), first[-2:])
    second_text = "<u>1<a>aa<e><u>2<a>"
    second = memory.splice(second_text, encode(second_text))
    assert second[: len(first)] == first
    memory.remember(second_text, second, (ord("b"), ord("a")))
    third_text = second_text + "ba<e><u>3<a>"
    third = memory.splice(third_text, encode(third_text))
    assert third == (*second, ord("b"), ord("a"), *encode("<e><u>3<a>"))


def test_another_text_or_the_same_length_is_left_alone() -> None:
    memory = TurnMemory(VOCAB)
    memory.remember("<u>hi<a>", encode("<u>hi<a>"), (ord("a"), ord("a")))
    for text in ("<u>ho<a>aa<e>", "<u>hi<a>ab<e>", "<u>hi<a>aa", "<u>hi"):
        assert memory.splice(text, encode(text)) == encode(text)


def test_no_boundary_no_splice() -> None:
    memory = TurnMemory(VOCAB)
    memory.remember("<u><a>", encode("<u><a>"), (ord("x"), ord("a")))
    text = "<u><a>xab<e>"
    assert memory.splice(text, encode(text)) == encode(text), "the cut would fall inside the token 'ab'"


def test_a_caller_s_text_that_looks_like_a_turn_stays_text() -> None:
    memory = TurnMemory(VOCAB)
    text = "<u>hi<a>"
    memory.remember(text, encode(text), (ord("a"), ord("a"), *encode("<e><u>aab"), ord("a")))
    looks_alike = text + "aa<e><u>aaba"
    assert memory.splice(looks_alike + "<e>", encode(looks_alike + "<e>")) != encode(looks_alike + "<e>")
    pieces = [Piece("<u>hi<a>aa", trusted=True), Piece("<e><u>"), Piece("aaba<e>", trusted=True)]
    guarded = VOCAB.encode(pieces, add_bos=False)
    assert memory.splice(looks_alike + "<e>", guarded) == tuple(guarded)
    quoted = (*encode(text), ord("a"), ord("a"), *b"<e>")
    other = TurnMemory(VOCAB)
    other.remember(text, encode(text), quoted[-5:])
    real = text + "aa<e><u>"
    assert other.splice(real, encode(real)) == encode(real), "nor does quoted text stand in for a control token"


def test_turns_of_one_text_whose_control_tokens_stand_in_different_places() -> None:
    """As many of them, in the same order: in one conversation a caller quotes the marker that the template wrote in
    the other. Each goes on with its own turn's tokens."""
    text = "<u>1<u>2<a>"
    quoting_last = VOCAB.encode([Piece("<u>1", trusted=True), Piece("<u>2"), Piece("<a>", trusted=True)], add_bos=False)
    quoting_first = VOCAB.encode([Piece("<u>1"), Piece("<u>2<a>", trusted=True)], add_bos=False)
    assert [t for t in quoting_last if VOCAB.is_special(t)] == [t for t in quoting_first if VOCAB.is_special(t)]
    odd = (ord("a"), ord("a"))
    end = encode("<e>")

    def splice(memory: TurnMemory, prompt: list[int]) -> tuple[int, ...]:
        return memory.splice(f"{text}aa<e>", [*prompt, *encode("aa"), *end])

    for first, second in ((quoting_last, quoting_first), (quoting_first, quoting_last)):
        memory = TurnMemory(VOCAB)
        memory.remember(text, tuple(first), odd)
        assert splice(memory, first) == (*first, *odd, *end)
        assert splice(memory, second) == (*second, *encode("aa"), *end), "nothing of the other conversation's"
        memory.remember(text, tuple(second), odd)
        assert splice(memory, first) == (*first, *odd, *end)
        assert splice(memory, second) == (*second, *odd, *end)


def test_output_that_is_no_utf_8_comes_back_as_the_bytes_it_was() -> None:
    memory = TurnMemory(VOCAB)
    memory.remember("<u>", encode("<u>"), (ord("a"), 0xC3, 0xE2, 0x82))
    memory.remember("<u>", encode("<u>"), ())
    text = "<u>a\ufffd\ufffd<e>"
    assert memory.splice(text, encode(text)) == (*encode("<u>a"), 0xC3, 0xE2, 0x82, *encode("<e>"))
    longer = "<u>a\ufffd\ufffd\ufffd<e>"
    assert memory.splice(longer, encode(longer))[-4:] == encode("\ufffd<e>"), "what the caller added is its own"


def test_bounds() -> None:
    memory = TurnMemory(VOCAB, capacity=2, max_tokens=40)
    texts = [f"<u>{digit}<a>" for digit in "123"]
    for text in texts:
        memory.remember(text, encode(text), (ord("a"), ord("a")))
        memory.remember(text, encode(text), (ord("a"), ord("a")))
    spliced = [memory.splice(f"{text}aa<e>", encode(f"{text}aa<e>")) != encode(f"{text}aa<e>") for text in texts]
    assert spliced == [False, True, True]
    memory.remember("<u>", encode("<u>"), (ord("a"),) * 60)
    assert memory.splice("<u>1<a>aa<e>", encode("<u>1<a>aa<e>")) == encode("<u>1<a>aa<e>")
    long = "<u>" + "a" * 60 + "<e>"
    assert memory.splice(long, encode(long)) != encode(long), "the newest is kept whatever its length"


@given(
    st.lists(st.text("abé ", max_size=6), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from([97, 98, 32, 0xC3, 0xA9, *range(259, 264)]), max_size=6), min_size=1, max_size=4),
)
def test_spliced_prompts_spell_the_same_text(asks: list[str], outputs: list[list[int]]) -> None:
    memory = TurnMemory(VOCAB)
    text = ""
    for ask, output in zip(asks, outputs, strict=False):
        text += f"<u>{ask}<a>"
        tokens = memory.splice(text, encode(text))
        assert VOCAB.text(tokens) == text
        assert [t for t in tokens if VOCAB.is_special(t)] == [t for t in encode(text) if VOCAB.is_special(t)]
        memory.remember(text, tokens, tuple(output))
        text += VOCAB.text(output) + "<e>"


def test_a_second_turn_continues_in_the_cache_though_its_text_retokenises_otherwise() -> None:
    odd = [ord("a"), VOCAB.first]

    class Odd(PairVocab):
        def tokenize(self, text: str, *, special: bool) -> list[int]:
            return odd if text == "aab" else super().tokenize(text, special=special)

    backend = ScriptedBackend(["aab", "x"], vocab=Odd())
    with Service(backend) as service:
        first = service.submit(TurnRequest(Prompt("<u>q<a>", (Piece("<u>q<a>", trusted=True),)), plain)).result()
        assert first.content == "aab"
        text = "<u>q<a>aab<e><u>r<a>"
        usage = service.submit(TurnRequest(Prompt(text, (Piece(text, trusted=True),)), plain)).result().usage
    assert usage is not None
    assert usage.cached_tokens == len(encode("<u>q<a>")) + len(odd)
