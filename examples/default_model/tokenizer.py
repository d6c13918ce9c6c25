"""The tokenizer: byte-level BPE whose pieces stay the same wherever a word is copied to.

A tiny model copies tokens, not letters. So a word must be cut alike behind a space, a quote or a bracket: merges happen
only inside runs of letters and inside structural punctuation; a space joins a word only for the fixed words of the
prompts, which are never values. The pre-tokenizer is llama.cpp's `qwen2`.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

from conversations import choose_turns, make_conversation, make_setting
from rendering import FAMILIES, ONE_CALL_A_MESSAGE, choose_options, conversation_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from words import CITIES, NOUNS, PARAMS, PEOPLE, VERBS, WORDS

CONTROL = """
    <|endoftext|> <|im_start|> <|im_end|> <|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>
    <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <|begin_of_text|> <|start_header_id|>
    <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]
    [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]
""".split()
USER_DEFINED = """
    <think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <｜tool▁calls▁begin｜>
    <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜>
    <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>
""".split()
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTER_MERGES = 860
SPACED_WORDS = 280
# In order of rank. `_` stands for a space, `~` for a line break.
PUNCTUATION = [
    '\\ "', '" :', '" ,', '\\" :', '\\" ,', '{ "', '{ \\"', '_ "', '_ \\"', '" }', '\\" }', '\\"} "', '} "', '"} }',
    '} }', '"}} }', '}} }', '_ {"', '_ {', '_{ "', '_ [', '_[ "', '" ]', '"] }', '"]} }', '"]}} }', '"} ,', '} ,',
    '}} ,', '] ,', '< /', '> ~', '~ ~', '` `', '`` `', '/ /', '( _', '() _', ') _', '= >', ', ~', '{ ~', '_{ ~',
    '_[ ~', '} ~', '", ~', '[ ~', '] ~', '} ~~', '_ _', '__ _', '__ __', '____ ___', '____ ____', '________ ___',
    '________ ________', '________ _______', '_________________ __',
]  # fmt: skip


def corpus(count: int) -> list[str]:
    """Rendered conversations of all families."""
    rng = random.Random(1)
    texts: list[str] = []
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        setting = make_setting(rng, False, rng.random() < 0.9)
        conversation = make_conversation(rng, setting, False, family not in ONE_CALL_A_MESSAGE, choose_turns(rng))
        texts.append("".join(conversation_texts(conversation, choose_options(rng, family))[-1]))
    return texts


def _letter_merges(texts: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Vocabulary and merges inside runs of letters, from words whose frequencies are flattened by a square root."""
    counts = Counter(word for text in texts for word in re.findall(r"[^\W\d_]+", text))
    words = [word for word, count in sorted(counts.items()) if count > 3 for _ in range(int(count**0.6))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + LETTER_MERGES, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(words, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [
        (left, right)
        for left, right in (item if isinstance(item, list) else item.split(" ") for item in model["merges"])
    ]
    return [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])], merges


def _fixed_words(texts: list[str], vocabulary: set[str]) -> list[str]:
    """Frequent words of the prompts that are one token and can be no value: only these may swallow a space.

    Short ones that begin like an invented word (no, to, the) may not: `notidai` would lose its first piece to them.
    """
    values = {
        word.lower()
        for known in (CITIES, PEOPLE, WORDS, VERBS, NOUNS, list(PARAMS))
        for item in known
        for word in item.split()
    }
    values -= {
        "for",
        "the",
        "a",
        "on",
        "my",
        "from",
        "to",
        "at",
        "name",
        "type",
        "format",
        "call",
        "content",
        "error",
        "user",
    }
    counts = Counter(word for text in texts for word in re.findall(r" ([A-Za-z]+)", text))
    fixed = (word for word, count in counts.most_common() if count > 60 and (len(word) > 3 or word[0] in "aeiouAEIOU"))
    return [word for word in fixed if word in vocabulary and word.lower() not in values][:SPACED_WORDS]


def build(path: Path) -> Tokenizer:
    """Make the tokenizer and save it."""
    texts = corpus(5000)
    vocabulary, merges = _letter_merges(texts)
    known = set(vocabulary)

    def add(left: str, right: str) -> None:
        if (left, right) not in merges:
            merges.append((left, right))
        if left + right not in known:
            known.add(left + right)
            vocabulary.append(left + right)

    for rule in PUNCTUATION:
        left, right = rule.replace("_", "Ġ").replace("~", "Ċ").split(" ")
        if left in known and right in known:
            add(left, right)
    for word in _fixed_words(texts, known):
        add("Ġ", word)
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(vocabulary)}, merges=merges))
    split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in USER_DEFINED])
    tokenizer.save(str(path))
    return tokenizer


if __name__ == "__main__":
    made = build(Path(__file__).with_name("tokenizer.json"))
    print("vocabulary", made.get_vocab_size())
