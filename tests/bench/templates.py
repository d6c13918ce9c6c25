"""What a template in a child process costs: one render of a conversation of 20 messages with tools, and one load.

    python tests/bench/templates.py [--renders 2000] [--loads 9]

Each render is done in this process and in the child, in turn. The loads are programs of their own, in turn too: with
the built-in model and its template, with a template that no family knows, and with that one trusted.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine import _data  # noqa: E402
from engine.template import renderer  # noqa: E402
from engine.template.chat_template import ChatTemplate  # noqa: E402

UNKNOWN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}@@{{ c.function.name }}"
    "({{ c.function.arguments | tojson }}){% endfor %}[/]{% endfor %}{{ tools | tojson if tools }}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LOAD = (
    "import time, warnings; warnings.simplefilter('ignore'); from engine import Engine; began = time.perf_counter()\n"
    "llm = Engine.load(n_ctx=512, {options}); print(time.perf_counter() - began); llm.close()"
)
LOADS = {
    "built-in": "",
    "unknown": f"chat_template={UNKNOWN!r}",
    "unknown, trusted": f"chat_template={UNKNOWN!r}, trust_template=True",
}


def conversation() -> list[dict[str, Any]]:
    """Five rounds of question, call, result and answer: 21 messages, 6 kB."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful assistant. " * 10}]
    for number in range(5):
        function = {"name": "get_weather", "arguments": json.dumps({"city": f"City {number}", "unit": "celsius"})}
        messages += [
            {"role": "user", "content": f"What is the weather in city {number}? " * 5},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"call_{number:04}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"call_{number:04}", "content": '{"temperature": 21.5, "sky": "clear"}'},
            {"role": "assistant", "content": "It is 21.5 degrees, and the sky is clear. " * 6},
        ]
    return [*messages[:-1], {"role": "user", "content": "Thank you. And tomorrow?"}]


def tools() -> list[dict[str, Any]]:
    """Four tools of three parameters each."""
    properties = {
        name: {"type": "string", "description": f"The {name} of the place that is asked about."}
        for name in ("city", "country", "unit")
    }
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    names = ("get_weather", "get_time", "get_population", "get_map")
    return [
        {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}
        for name in names
    ]


def renders(count: int) -> None:
    """Milliseconds of a turn's prompt, and of the template's own render within."""
    messages, known = conversation(), tools()
    for name, source in (("qwen3", _data.template_source("qwen3") or ""), ("unknown", UNKNOWN)):
        made = {
            where: ChatTemplate(source + ("{#- x #}" if where == "child" else ""), trust_template=where == "here")
            for where in ("here", "child")
        }
        assert len({template.render(messages, known).text for template in made.values()}) == 1
        times: dict[str, list[float]] = {where: [] for where in made}
        used = dict.fromkeys(made, 0.0)
        for _ in range(count):
            for where, template in made.items():
                before = _seconds()
                times[where].append(_timed(lambda: template.render(messages, known)))  # noqa: B023 - called at once
                used[where] += _seconds() - before
        for where, found in times.items():
            print(f"render {name:8} {where:6} {_told(found)}   processor {used[where] / count * 1000:.2f} ms")
        print(
            f"render {name:8} child adds {statistics.median(times['child']) - statistics.median(times['here']):.2f} ms"
        )


def _seconds() -> float:
    """Processor time of this process and of the child that renders, where the system tells."""
    seconds = time.process_time()
    for process in renderer._idle:  # pyright: ignore[reportPrivateUsage]
        stat = Path(f"/proc/{process.child.process.pid}/schedstat")
        seconds += int(stat.read_text(encoding="utf-8").split()[0]) / 1e9 if stat.exists() else 0.0
    return seconds


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _told(milliseconds: list[float]) -> str:
    ranked = sorted(milliseconds)
    p95 = ranked[int(len(ranked) * 0.95)]
    return f"median {statistics.median(ranked):8.2f} ms   p95 {p95:8.2f} ms   least {ranked[0]:8.2f} ms"


def loads(count: int) -> None:
    """Milliseconds of `Engine.load`, and the processor time of the whole program and its children."""
    times: dict[str, list[float]] = {name: [] for name in LOADS}
    used: dict[str, list[float]] = {name: [] for name in LOADS}
    for _ in range(count):
        for name, options in LOADS.items():
            before = _children_seconds()
            script = LOAD.format(options=options)
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            times[name].append(float(done.stdout) * 1000)
            used[name].append((_children_seconds() - before) * 1000)
    for name in LOADS:
        print(f"load {name:18} {_told(times[name])}   processor {statistics.median(used[name]):.0f} ms")


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--renders", type=int, default=2000)
    options.add_argument("--loads", type=int, default=9)
    given = options.parse_args()
    renders(given.renders)
    loads(given.loads)


if __name__ == "__main__":
    main()
