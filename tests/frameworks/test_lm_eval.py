"""lm-evaluation-harness over a model in this process: local tasks, with the figures of the engine's own scores."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval")

from engine.plugins.lm_eval import EngineLM  # noqa: E402

ROWS = [
    {"question": "What is the weather in Paris?", "choices": ["sunny", "rainy", "x"], "gold": 0},
    {"question": "Who are you?", "choices": ["hello", "a model", "z"], "gold": 1},
    {"question": "Hello!", "choices": ["hi", "bye", "q"], "gold": 0},
]
TASKS = {
    "choose": """
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{metric: acc}]
""",
    "roll": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
""",
    "write": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    lm: Any = EngineLM(n_ctx=256, n_sequences=4)
    yield lm
    lm._llm.close()


@pytest.fixture(scope="module")
def results(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    for name, task in TASKS.items():
        source = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {data}}}\ntest_split: train\n{task}"
        (folder / f"{name}.yaml").write_text(source, encoding="utf-8")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0)["results"]


def test_a_choice_is_right_where_its_score_is_best(model: Any, results: Any) -> None:
    llm, right = model._llm, 0
    for row in ROWS:
        scores = llm.score(f"Question: {row['question']}\nAnswer:", [f" {choice}" for choice in row["choices"]])
        right += max(range(3), key=lambda index: scores[index].logprob) == row["gold"]
    assert results["choose"]["acc,none"] == pytest.approx(right / len(ROWS))


def test_a_rolling_text_has_the_sum_of_its_tokens(model: Any, results: Any) -> None:
    from math import log

    llm = model._llm
    texts = [str(row["question"]) for row in ROWS]
    sums = [llm.score([model._first()], [llm.tokenize(text, special=False)])[0].logprob for text in texts]
    assert results["roll"]["bits_per_byte,none"] == pytest.approx(-sum(sums) / sum(map(len, texts)) / log(2), rel=1e-3)


def test_what_is_written_ends_where_the_task_says(model: Any, results: Any) -> None:
    assert "exact_match,none" in results["write"]

    class Instance:
        args = ("Hello", {"until": ["l"], "max_gen_toks": 8})

    (text,) = model.generate_until([Instance()])
    assert "l" not in text


def test_a_context_longer_than_the_model_loses_its_beginning(model: Any) -> None:
    class Instance:
        args = ("word " * 400, "end")

    ((logprob, _),) = model.loglikelihood([Instance()])
    assert logprob < 0
