#!/usr/bin/env python3
"""Render the templates of fixtures/chat with transformers, as the expected texts of the tests.

    python scripts/chat_templates.py

The templates have the forms that publishers of models use. `fixtures/chat/cases.json` lists conversations with the text that
`apply_chat_template` makes of each, or the error of the template.
"""
import datetime
import json
from pathlib import Path
from unittest import mock

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parent.parent
CHAT = ROOT / "fixtures/chat"
# Seconds since 1970, UTC.
NOW = 1_709_251_509

weather = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Today's weather, in °C <or °F> & more.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name."},
                "unit": {"enum": ["C", "F"], "type": "string"},
                "days": {"type": "integer", "default": 1, "minimum": 0.5},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
clock = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {}, "return": {"type": "string"}}}


def say(role, content, **other):
    return {"role": role, "content": content, **other}


def call(name, arguments, id="abcdefghi"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


short = [say("user", " Hello, <world> & \"all\"! ")]
system = say("system", "You are terse.\n")
turns = [*short, say("assistant", "Hi.\n"), say("user", "Why is the sky blue? 🌊")]
used = [
    say("user", "Weather in Zürich?"),
    say("assistant", None, tool_calls=[call("weather", {"unit": "C", "city": "Zürich", "days": 2})]),
    say("tool", "21.5", name="weather", tool_call_id="abcdefghi"),
]
twice = [
    say("user", "Two cities?"),
    say("assistant", "Looking.", tool_calls=[call("weather", {"city": "A"}), call("weather", {"city": "B"}, "ihgfedcba")]),
    say("tool", "1", tool_call_id="abcdefghi"),
    say("tool", "2", tool_call_id="ihgfedcba"),
    say("assistant", "1 and 2."),
]
thought = [
    say("user", "2 + 2?"),
    say("assistant", "<think>\nEasy.\n</think>\n\n4"),
    say("user", "And 3 + 3?"),
    say("assistant", "6", reasoning_content="Six."),
]
parts = [
    say("system", [{"type": "text", "text": "Look closely."}]),
    say("user", [{"type": "image"}, {"type": "text", "text": " What is this? "}]),
]
extra = {"zeta": 1, "alpha": [1.5, None, True, "é</b>"], "m": {"y": {}, "x": []}, "big": 12345678901234567, "small": 1e-07, "whole": 2.0, "large": 1e22}

CASES = [
    ("llama3", short, {}),
    ("llama3", [system, *turns], {}),
    ("llama3", [system, *turns], {"add_generation_prompt": False, "date_string": "1 Jan 2020"}),
    ("llama3", used, {"tools": [weather]}),
    ("llama3", [system, *used], {"tools": [weather, clock], "tools_in_user_message": False}),
    ("llama3", twice, {"tools": [weather]}),
    ("qwen2", short, {}),
    ("qwen2", [system, *turns], {}),
    ("qwen2", used, {"tools": [weather, clock]}),
    ("qwen2", [system, *twice], {"tools": [weather], "add_generation_prompt": False}),
    ("qwen3", [system, *turns], {}),
    ("qwen3", thought, {"add_generation_prompt": False}),
    ("qwen3", thought[:3], {"enable_thinking": False}),
    ("qwen3", used, {"enable_thinking": True}),
    ("phi3", short, {}),
    ("phi3", [system, *turns], {}),
    ("phi3", turns, {"add_generation_prompt": False}),
    ("gemma", short, {}),
    ("gemma", turns, {}),
    ("gemma", [system, *turns], {}),
    ("gemma", [*short, *short], {}),
    ("gemma3", [system, *turns], {}),
    ("gemma3", parts, {}),
    ("mistral", [system, *turns], {}),
    ("mistral", used, {"tools": [weather, clock]}),
    ("mistral", twice, {"tools": [weather]}),
    ("mistral", [*turns, *short], {}),
    ("mistral", [say("user", "x"), say("assistant", None, tool_calls=[call("clock", {}, "short")])], {}),
    ("trained", [say("hidden", "-"), *turns, twice[1], say("end", "-"), say("user", "-")], {}),
    ("trained", turns, {"add_generation_prompt": False}),
    ("python", [say("user", "  one apple\nand a banana  "), say("assistant", "fine")], {"extra_value": extra}),
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def main():
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "fixtures/tokenizers/wordlevel.json"), **tokens)
    cases = []
    for template, messages, options in CASES:
        options = {"add_generation_prompt": True, **options}
        case = {"template": template, "messages": messages, "options": options}
        try:
            text = (CHAT / f"{template}.jinja").read_text()
            with mock.patch.object(chat_template_utils, "datetime", Clock):
                case["text"] = tokenizer.apply_chat_template(messages, chat_template=text, tokenize=False, **options)
        except jinja2.exceptions.TemplateError as e:
            case["error"] = str(e)
        cases.append(case)
    whole = {"special": tokens, "now": NOW, "cases": cases}
    (CHAT / "cases.json").write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(cases)} cases, {sum('error' in c for c in cases)} of them errors")


if __name__ == "__main__":
    main()
