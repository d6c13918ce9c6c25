"""Conversations that outgrow the context: is a fact of the second turn known in the fortieth?

Each of 20 conversations states a fact, talks of other things for 37 turns whose answers are given, and asks for the
fact. The model reads every turn as a caller would send it. Printed, for `overflow="truncate_oldest"` and "summarise":
in how many of 20 the fact was in the answer and in the last prompt, tokens evaluated a turn (summaries included),
summaries written; before that the summaries and answers themselves.
"""

import argparse
import random
from dataclasses import dataclass
from typing import Any

from engine import Engine, Summarised

FACTS = [
    ("My dog is called Biscuit.", "What is my dog called?", "Biscuit"),
    ("I live in Lisbon.", "In which city do I live?", "Lisbon"),
    ("My sister's name is Clara.", "What is my sister's name?", "Clara"),
    ("My locker has the number 4172.", "Which number has my locker?", "4172"),
    ("I work as a carpenter.", "What is my job?", "carpenter"),
    ("My favourite colour is purple.", "What is my favourite colour?", "purple"),
    ("I was born in 1987.", "In which year was I born?", "1987"),
    ("My train leaves from platform 9.", "From which platform does my train leave?", "9"),
    ("I am allergic to peanuts.", "What am I allergic to?", "peanut"),
    ("My car is a red Volvo.", "What car do I have?", "Volvo"),
    ("My boss is called Mr. Okafor.", "Who is my boss?", "Okafor"),
    ("I play the cello.", "Which instrument do I play?", "cello"),
    ("My flight is on Thursday.", "On which day is my flight?", "Thursday"),
    ("My daughter is seven years old.", "How old is my daughter?", "seven"),
    ("The meeting is in room Jupiter.", "In which room is the meeting?", "Jupiter"),
    ("My password hint is walnut.", "What is my password hint?", "walnut"),
    ("I speak Finnish.", "Which language do I speak?", "Finnish"),
    ("My budget is 2500 euros.", "What is my budget?", "2500"),
    ("I am writing a book about bees.", "What is my book about?", "bees"),
    ("My cat weighs five kilos.", "What does my cat weigh?", "five"),
]
TOPICS = ["rivers", "mountains", "bread", "trains", "music", "clouds", "chess", "gardens", "bridges", "coffee", "lamps"]
ASKS = ("Tell me something about {}.", "Why do people like {}?", "What is hard about {}?")
ANSWERS = (
    "There is much to say about {0}. They have been around for long, and every country has its own kind of {0}.",
    "People like {0} because they are useful and calm the mind. Some even collect pictures of {0}.",
    "The hard part of {0} is to begin. It takes patience, and most people who try {0} need a few weeks.",
)
POLICIES = ("truncate_oldest", "summarise")


def talk(number: int) -> list[dict[str, str]]:
    """The messages of a conversation, up to the last question."""
    fact, asked, _ = FACTS[number]
    drawn = random.Random(number)
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    for turn in range(39):
        topic, kind = drawn.choice(TOPICS), drawn.randrange(len(ASKS))
        told = (fact, "I will remember that.") if turn == 1 else (ASKS[kind].format(topic), ANSWERS[kind].format(topic))
        messages += [{"role": "user", "content": told[0]}, {"role": "assistant", "content": told[1]}]
    return [*messages, {"role": "user", "content": asked}]


@dataclass
class Sums:
    """What was counted under one policy."""

    known: int = 0
    there: int = 0
    talks: int = 0
    turns: int = 0
    evaluated: int = 0
    written: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return (
            f"answered {self.known} of {self.talks}, in the last prompt {self.there}; "
            f"{self.evaluated / max(1, self.turns):.0f} tokens evaluated a turn; "
            f"{self.written} summaries, {self.failed} failed"
        )


def measure(llm: Engine, policy: Any, number: int, sums: Sums, options: argparse.Namespace) -> None:
    """Have one conversation, printing its summaries and its answer."""
    messages, fact = talk(number), FACTS[number][2].lower()
    done = None
    for stop in range(2 * options.first, len(messages) + 1, 2):
        most = 40 if stop == len(messages) else 1
        given: Any = {"overflow": policy, "summary_tokens": options.tokens, "temperature": 0}
        given["cache_salt"] = f"{policy} {number}"  # neither finds the other's prompts
        with llm.stream(messages[:stop], max_tokens=most, **given) as stream:
            told = [event for event in stream if isinstance(event, Summarised)]
            done = stream.completion
        sums.written += sum(not event.failure for event in told)
        sums.failed += sum(bool(event.failure) for event in told)
        sums.turns += 1
        sums.evaluated += done.usage.prompt_tokens - done.usage.cached_tokens + done.usage.summarising_tokens
        for event in told:
            print(f"  turn {stop // 2}: {event.text or event.failure!r}")
    assert done is not None, "a conversation has turns"
    sums.talks += 1
    sums.there += fact in llm.render(messages, overflow=policy, max_tokens=40).text.lower()
    sums.known += fact in done.content.lower()
    print(f"  {messages[-1]['content']} {done.content!r}\n{policy}: {sums}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="as Engine.load takes it; none is the built-in toy")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--tokens", type=int, help="summary_tokens")
    parser.add_argument("--first", type=int, default=1, help="the first turn that is sent; those before it fit anyway")
    parser.add_argument("--skip", type=int, default=0, help="conversations that are left out")
    options = parser.parse_args()
    sums = {policy: Sums() for policy in POLICIES}
    with Engine.load(options.model, n_ctx=options.ctx, n_sequences=2, preflight=False) as llm:
        for number in range(options.skip, len(FACTS)):
            for policy in POLICIES:
                measure(llm, policy, number, sums[policy], options)


if __name__ == "__main__":
    main()
