"""Response templates as authors may write them, one of each shape, and outputs that each must read alike."""

from typing import Any, NamedTuple

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
WHOLE = {"type": "function", "function": "{content}"}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
TYPED = {"name": "json", "args": {"allow_non_json": True}}
PARIS, ROME = '{"city": "Paris", "days": 3}', '{"city": "R<o>me"}'


class Shape(NamedTuple):
    """A response template, the shape that its calls have here, and an output: reasoning (if it has any), an answer, and
    two calls of `look` with the arguments PARIS and `second`. `says`: the answer is part of the output."""

    template: dict[str, Any]
    shape: str
    output: str
    thinks: bool = True
    says: bool = True
    second: str = ROME


def stated(start: str, stop: str | list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    """A response template whose answer is what stands in no other field."""
    content = {"close": stop, "content": "text"}
    return {"start_anchor": start, "defaults": {"role": "assistant"}, "fields": {**fields, "content": content}}


HERMES = stated(
    "<|im_start|>assistant\n",
    ["<|im_end|>", "<|endoftext|>"],
    reasoning_content=THINK,
    tool_calls={"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json", "transform": WHOLE},
)
CODER = stated(
    "<|im_start|>assistant\n",
    "<|im_end|>",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>]+)>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
            "value_parser": TYPED,
        },
        "transform": CALL,
    },
)
HARMONY = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {
            "open_pattern": r"<\|channel\|>analysis<\|message\|>",
            "close": "<|end|>",
            "repeats": True,
            "join": "\n",
        },
        "content": {"open": "<|channel|>final<|message|>", "close": ["<|return|>", "<|end|>"]},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": CALL,
        },
    },
}
LISTED = {
    "start_anchor": "<|bot|>",
    "fields": {
        "reasoning": {"open": "<|think|>", "close": "<|/think|>"},
        "content": {"open": "<|say|>", "close": "<|/say|>"},
        "tool_calls": {
            "open": "<|do|>",
            "close": "<|/do|>",
            "content": "json",
            "transform_each": True,
            "transform": {
                "type": "function",
                "id": "{call_id}",
                "function": {"name": "{tool}", "arguments": "{input}"},
            },
        },
    },
}
ATTRIBUTE = stated(
    "<|bot|>",
    "<|end|>",
    thinking=THINK,
    tool_calls={
        "open_pattern": r'<function name="(?P<name>[^"]+)">\s*',
        "close": "</function>",
        "repeats": True,
        "content": "json",
        "transform": CALL,
    },
)
FENCED = stated(
    "<|bot|>",
    "<|end|>",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"(?:<\|calls\|>)?<\|call\|>function<\|sep\|>(?P<name>[\w.-]+)\n```json\n",
        "close_pattern": r"\n```<\|/call\|>(?:<\|/calls\|>)?",
        "repeats": True,
        "content": "json",
        "transform": CALL,
    },
)
PYTHON = stated(
    "<|im_start|>assistant\n",
    "<|im_end|>",
    reasoning_content=THINK,
    tool_calls={
        "open": "<|tool_call_start|>",
        "close": "<|tool_call_end|>",
        "content": "python-call-list",
        "transform_each": True,
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
    },
)
BARE_KEYS = stated(
    "<|turn>model\n",
    "<turn|>",
    thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    tool_calls={
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "transform": CALL,
    },
)
PAIRS = stated(
    "<|assistant|>",
    ["<|user|>", "<|observation|>"],
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"<tool_call>(?P<name>[^<\s]+)\s*",
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
            "value_parser": TYPED,
        },
        "transform": CALL,
    },
)
ELEMENTS = stated(
    "<|bot|>",
    "<|end|>",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r'<call name="(?P<name>\w+)">',
        "close": "</call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</(?P=key)>", "value_parser": TYPED},
        "transform": CALL,
    },
)
BARE = stated(
    "<|bot|>",
    "<|end|>",
    tool_calls={
        "open_pattern": r"(?=\{\"name\")",
        "content": "json",
        "transform": {
            "type": "function",
            "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
        },
    },
)
COUNTED = stated(
    "<|bot|>",
    "<|end|>",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"(?:<\|sec\|>)?<\|call\|>functions\.(?P<name>[\w.-]+):\d+<\|arg\|>",
        "close_pattern": r"<\|done\|>(?:<\|/sec\|>)?",
        "repeats": True,
        "content": "json",
        "transform": CALL,
    },
)
WITH_IDS = stated(
    "<|bot|>",
    "<|end|>",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"\[CALL\](?P<name>[^\[]+)\[ID\](?P<id>\w+)\[ARGS\]",
        "close": "[END]",
        "repeats": True,
        "content": "json",
        "transform": {"id": "{id}", **CALL},
    },
)
WHY = "<think>\nBecause.\n</think>\n\nIt is so.\n"

SHAPES = {
    "json in tags": Shape(
        HERMES,
        "json",
        WHY + f'<tool_call>\n{{"name": "look", "arguments": {PARIS}}}\n</tool_call>\n'
        f'<tool_call>{{"name": "look", "arguments": {ROME}}}</tool_call>',
    ),
    "arguments in tags": Shape(
        CODER,
        "tagged_args",
        WHY + "<tool_call>\n<function=look>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=look>\n<parameter=city>\nR<o>me\n</parameter>\n</function>\n"
        "</tool_call>",
    ),
    "channels": Shape(
        HARMONY,
        "channels",
        "<|channel|>analysis<|message|>Because.<|end|><|start|>assistant<|channel|>final<|message|>It is so.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{PARIS}<|call|>"
        f"<|start|>assistant<|channel|>commentary to=functions.look<|message|>{ROME}<|call|>",
    ),
    "a list of calls": Shape(
        LISTED,
        "json",
        "<|think|>Because.<|/think|><|say|>It is so.<|/say|><|do|>"
        f'[{{"call_id": "1", "tool": "look", "input": {PARIS}}}, {{"call_id": "2", "tool": "look", "input": {ROME}}}]'
        "<|/do|>",
    ),
    "a name in an attribute": Shape(
        ATTRIBUTE,
        "tagged_json",
        WHY + f'<function name="look">\n{PARIS}</function><function name="look">{ROME}</function>',
    ),
    "fenced in sections": Shape(
        FENCED,
        "tagged_json",
        WHY + f"<|calls|><|call|>function<|sep|>look\n```json\n{PARIS}\n```<|/call|>"
        f"<|call|>function<|sep|>look\n```json\n{ROME}\n```<|/call|><|/calls|>",
    ),
    "python": Shape(
        PYTHON,
        "pythonic",
        WHY + "<|tool_call_start|>[look(city=\"Paris\", days=3), look(city='R<o>me')]<|tool_call_end|>",
    ),
    "bare keys": Shape(
        BARE_KEYS,
        "dictionary",
        "<|channel>thought\nBecause.<channel|>It is so."
        '<|tool_call>call:look{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:look{city:<|"|>R<o>me<|"|>}<tool_call|>',
    ),
    "pairs": Shape(
        PAIRS,
        "tagged_args",
        WHY + "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>look<arg_key>city</arg_key><arg_value>R<o>me</arg_value>"
        "</tool_call>",
    ),
    "an element for each argument": Shape(
        ELEMENTS,
        "nested",
        WHY + '<call name="look"><city>Paris</city><days>3</days></call><call name="look"><city>Rome</city></call>',
        second='{"city": "Rome"}',
    ),
    "bare objects": Shape(
        BARE,
        "json",
        f'{{"name": "look", "parameters": {PARIS}}}; {{"name": "look", "parameters": {ROME}}}',
        thinks=False,
        says=False,
    ),
    "counted calls": Shape(
        COUNTED,
        "tagged_json",
        WHY
        + f"<|sec|><|call|>functions.look:0<|arg|>{PARIS}<|done|><|call|>functions.look:1<|arg|>{ROME}<|done|><|/sec|>",
    ),
    "ids in brackets": Shape(
        WITH_IDS, "tagged_json", WHY + f"[CALL]look[ID]a1[ARGS]{PARIS}[END][CALL]look[ID]b2[ARGS]{ROME}[END]"
    ),
}
