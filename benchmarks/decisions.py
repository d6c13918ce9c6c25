"""How right a model's decisions are, beside other ways to ask it the same:

    python benchmarks/decisions.py --model FILE [--every 3] [--ways decide,letters]

`decide` is `Engine.decide`. `letters` shows the options behind letters and reads the letters' probabilities in one
place, as servers do. `words` shows the options and scores each as a whole, by its tokens' sum. `generated` shows the
options and generates one of them greedily under `Choice`. `server` asks a llama-server for the letters, if LLAMA_SERVER
is the address of one with the same model. Printed for each way and kind: right answers; for all the
Brier score (0 is best), the expected calibration error over ten bins, the share of choices that change when their
options are asked in the opposite order (of statements and scores nothing is turned around), tokens evaluated and
processor seconds a question. `calibrated` is `decide` judged on
rows that a fit to the others of their kind has not seen, beside `uncalibrated`, the same rows.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from random import Random
from time import process_time
from typing import Any
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from decision_tasks import STATEMENT, TASKS, Decision  # noqa: E402

from engine import Calibration, Choice, ChoiceQuestion, Engine, Predicate, ScoreQuestion  # noqa: E402
from engine.types.decisions import Decision as Decided  # noqa: E402
from engine.types.decisions import Question  # noqa: E402

LETTERS = "ABCDEFGH"
FOLDS = 5
SERVER = os.environ.get("LLAMA_SERVER", "")
Answered = Sequence[float]
"""The probability of each option, in the task's order."""


@dataclass
class Way:
    """What one way of asking gave. `changed`: of the choices that were `turned` around, those whose answer changed."""

    rows: list[tuple[Decision, Answered]]
    turned: int = 0
    changed: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def told(self, kinds: Sequence[str]) -> str:
        right, asked = Counter[str](), Counter[str]()
        for task, found in self.rows:
            asked[task.kind] += 1
            right[task.kind] += best(found) == task.answer
        counts = "".join(f"{f'{right[kind]}/{asked[kind]}':>11}" for kind in kinds)
        size = len(self.rows)
        return (
            f"{counts}{right.total():>6}/{size}{brier(self.rows):>8.3f}{calibration_error(self.rows):>7.3f}"
            f"{self.changed / max(1, self.turned):>9.1%}{self.tokens / size:>8.0f}{self.seconds / size:>8.2f}"
        )


def best(found: Answered) -> int:
    return max(range(len(found)), key=found.__getitem__)


def brier(rows: Sequence[tuple[Decision, Answered]]) -> float:
    return sum(sum((p - (n == task.answer)) ** 2 for n, p in enumerate(found)) for task, found in rows) / len(rows)


def calibration_error(rows: Sequence[tuple[Decision, Answered]]) -> float:
    """How far confidence and share of right answers are apart, over ten bins of confidence."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for task, found in rows:
        bins.setdefault(min(9, int(max(found) * 10)), []).append((max(found), best(found) == task.answer))
    return sum(abs(sum(p for p, _ in each) - sum(right for _, right in each)) for each in bins.values()) / len(rows)


def question_of(task: Decision) -> Question:
    if task.options == STATEMENT:
        return Predicate(task.question)
    options: Any = dict(zip(task.options, task.descriptions, strict=True)) if task.descriptions else task.options
    return (ScoreQuestion if task.kind == "severity" else ChoiceQuestion)(task.question, options)


def probabilities(decided: Decided[Any], task: Decision) -> Answered:
    rows = decided["answer"].rows
    found = {str(value): p for value, p in rows}
    return [found["False"], found["True"]] if task.options == STATEMENT else [found[each] for each in task.options]


def decide(llm: Engine, task: Decision) -> Answered:
    return probabilities(llm.decide(task.text, question_of(task)), task)


def asked_with(task: Decision, marks: Sequence[str]) -> str:
    about = task.descriptions or ("",) * len(task.options)
    lines = [
        f"{mark}{option}{f': {text}' if text else ''}"
        for mark, option, text in zip(marks, task.options, about, strict=True)
    ]
    question = f"Statement: {task.question}\nIs it true?" if task.options == STATEMENT else task.question
    return f"{task.text}\n\n{question}\n" + "\n".join(lines)


def prompt_of(llm: Engine, text: str) -> tuple[Any, str]:
    """Returns the prompt, and the blank before its answer: a base model gets plain text."""
    return (llm.render(text), "") if llm.family.name != "content-only" else (f"{text}\nAnswer:", " ")


def scored(llm: Engine, text: str, options: Sequence[str]) -> Answered:
    prompt, blank = prompt_of(llm, text)
    weights = [exp(score.logprob) for score in llm.score(prompt, [blank + option for option in options])]
    return [each / sum(weights) for each in weights]


def letters(llm: Engine, task: Decision) -> Answered:
    marks = LETTERS[: len(task.options)]
    text = asked_with(task, [f"{mark}. " for mark in marks])
    return scored(llm, f"{text}\nAnswer with the letter only.", marks)


def words(llm: Engine, task: Decision) -> Answered:
    return scored(llm, f"{asked_with(task, ['- '] * len(task.options))}\nAnswer with one of these only.", task.options)


def generated(llm: Engine, task: Decision) -> Answered:
    text = f"{asked_with(task, ['- '] * len(task.options))}\nAnswer with one of these only."
    prompt, _ = prompt_of(llm, text)
    form = Choice(task.options)
    if isinstance(prompt, str):
        said = llm.complete(f"{prompt} ", response_format=form, temperature=0, max_tokens=16).parsed
    else:
        said = llm.chat(text, response_format=form, temperature=0, max_tokens=16).parsed
    return [float(option == said) for option in task.options]


def server(llm: Engine, task: Decision) -> Answered:
    """The same letters in the same prompt, asked of a llama-server with the same model by `n_probs`."""
    marks = LETTERS[: len(task.options)]
    text = asked_with(task, [f"{mark}. " for mark in marks])
    prompt, _ = prompt_of(llm, f"{text}\nAnswer with the letter only.")
    whole = prompt if isinstance(prompt, str) else prompt.text
    body = {"prompt": whole, "n_predict": 1, "n_probs": 200, "temperature": 0, "cache_prompt": True}
    asked = Request(f"{SERVER}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(asked) as answer:
        likely = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
    found = [sum(exp(each["logprob"]) for each in likely if each["token"].strip() == mark) for mark in marks]
    return [each / sum(found) for each in found] if sum(found) else [1 / len(marks)] * len(marks)


WAYS: dict[str, Callable[[Engine, Decision], Answered]] = {
    "decide": decide,
    "letters": letters,
    "words": words,
    "generated": generated,
    **({"server": server} if SERVER else {}),
}


def reversed_(task: Decision) -> Decision:
    return replace_options(task, task.options[::-1], task.descriptions[::-1], len(task.options) - 1 - task.answer)


def replace_options(task: Decision, options: tuple[str, ...], about: tuple[str, ...], answer: int) -> Decision:
    return task._replace(options=options, descriptions=about, answer=answer)


def tried(llm: Engine, ask: Callable[[Engine, Decision], Answered], tasks: Sequence[Decision]) -> Way:
    way = Way([])
    for task in tasks:
        before, start = llm.metrics, process_time()
        found = ask(llm, task)
        way.seconds += process_time() - start
        after = llm.metrics
        way.tokens += (after.prompt_tokens - before.prompt_tokens) - (after.cached_tokens - before.cached_tokens)
        way.tokens += after.completion_tokens - before.completion_tokens
        way.rows.append((task, found))
        if task.options != STATEMENT and task.kind != "severity":  # levels have an order, and statements no options
            other = ask(llm, reversed_(task))
            way.turned += 1
            way.changed += best(found) != len(found) - 1 - best(other)
    return way


def calibrated(llm: Engine, tasks: Sequence[Decision]) -> tuple[Way, Way]:
    """Returns all rows without and with a calibration that was fitted on the others of their kind: in five parts, each
    judged by a fit to the other four (26 to 40 rows)."""
    plain, fitted = Way([]), Way([])
    for kind in dict.fromkeys(task.kind for task in tasks):
        own = [task for task in tasks if task.kind == kind]
        Random(kind).shuffle(own)
        decided = [llm.decide(task.text, question_of(task)) for task in own]
        known: list[Any] = [
            {"answer": bool(task.answer) if task.options == STATEMENT else task.options[task.answer]} for task in own
        ]
        for part in range(FOLDS):
            rest = [n for n in range(len(own)) if n % FOLDS != part]
            fit = Calibration.fit([decided[n] for n in rest], [known[n] for n in rest])
            for task, found in list(zip(own, decided, strict=True))[part::FOLDS]:
                plain.rows.append((task, probabilities(found, task)))
                after = replace(found, answers={"answer": fit.applied("answer", found["answer"])})
                fitted.rows.append((task, probabilities(after, task)))
    return plain, fitted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--every", type=int, default=1, help="ask only each so many-th task")
    parser.add_argument("--ways", default=",".join((*WAYS, "calibrated")))
    given = parser.parse_args()
    tasks = TASKS[:: given.every]
    kinds = tuple(dict.fromkeys(task.kind for task in tasks))
    with Engine.load(given.model, n_ctx=2048) as llm:
        print(f"{'':14}{''.join(f'{kind:>11}' for kind in kinds)}       all   brier    ece  changed  tokens seconds")
        for name in given.ways.split(","):
            if name == "calibrated":
                for label, way in zip(("uncalibrated", "calibrated"), calibrated(llm, tasks), strict=True):
                    print(f"{label:14}{way.told(kinds)}", flush=True)
            else:
                print(f"{name:14}{tried(llm, WAYS[name], tasks).told(kinds)}", flush=True)
        print("settled by:", llm.decider.losses)


if __name__ == "__main__":
    main()
