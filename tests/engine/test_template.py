"""Chat templates: what Hugging Face's renderer gives, and an end to templates that do harm."""

import json
import time

import pytest

from intarsia.core.errors import UsageError
from intarsia.engine.text import ChatTemplate
from intarsia.engine.text.errors import MessageRefusedError, TemplateError

FUNCTION = {"name": "f", "description": "<é> & 'x'", "parameters": {"a": [1, 2.5]}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>\n"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"k": "v"}}}],
    },
    {"role": "tool", "content": "ünï"},
]
# What real templates use: whitespace control, macros, namespaces, loop controls, tojson, slices, methods.
REAL_WORLD = """[gMASK]<sop>
{%- if tools %}
<|system|>
    {% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{{ tool | tojson(indent=2, sort_keys=true) }}
    {% endfor %}
{%- endif %}
{% macro visible(content) -%}
    {{ content.strip() if content is string else '' }}
{%- endmacro -%}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif -%}
<|{{ m.role }}|>{{ visible(m.content) }}
    {%- for call in m.tool_calls or [] %}
        {%- for k, v in call.function.arguments.items() %}
<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson if v is not string else v }}</arg_value>
        {%- endfor %}
    {%- endfor %}
{%- endfor %}
{{ messages[-1]['content'][::-1].upper().split('N')[0] }}{{ ns.last }} {{ eos_token }}
{% if add_generation_prompt %}<|assistant|>{{ '<think></think>' if not enable_thinking }}{% endif %}
"""


DOUBLING = "{% set n = namespace(s='x') %}{% for i in range(90) %}{% set n.s = n.s ~ n.s %}{% endfor %}"


def render(source, messages=CHAT, seconds=5.0, special=None, **options):
    with ChatTemplate(source, special, seconds=seconds) as template:
        return template.render(messages, **options)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("enable_thinking", [True, False])
def test_equals_hugging_face(tools, enable_thinking):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected, _ = utils.render_jinja_template(
        [CHAT],
        tools=tools,
        chat_template=REAL_WORLD,
        add_generation_prompt=True,
        enable_thinking=enable_thinking,
        eos_token="<|end|>",
    )
    special = {"eos_token": "<|end|>"}
    assert render(REAL_WORLD, tools=tools, enable_thinking=enable_thinking, special=special) == expected[0]


def test_the_same_process_renders_again():
    with ChatTemplate("{{ messages|length }}{% set x = (x or 0) + 1 %}{{ x }}") as template:
        template.check()
        assert template.render(CHAT) == "41"
        assert template.render(CHAT[:1]) == "11"


def test_a_template_refuses_in_its_own_words():
    with ChatTemplate("{{ raise_exception('no such role: ' + messages[0].role) }}") as template:
        for _ in range(2):
            with pytest.raises(MessageRefusedError, match="no such role: system"):
                template.render(CHAT)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ nothing.here.at.all }}", "UndefinedError"),
        ("{{ messages | no_such_filter }}", "TemplateAssertionError|no_such_filter"),
        ("{% include 'other' %}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{{ raise_exception.__globals__.x }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (DOUBLING, "memory"),
        ("{{ 'x' * 20000000 }}", "20,000,000 characters"),
    ],
)  # fmt: skip
def test_failing_templates(source, words):
    with pytest.raises(TemplateError, match=words):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 8) % 7 }}",
    ],
)
def test_endless_templates_end(source):
    begin = time.monotonic()
    with pytest.raises(TemplateError, match=r"no result after 0\.5 seconds"):
        render(source, seconds=0.5)
    assert time.monotonic() - begin < 10


def test_a_fresh_process_follows_an_ended_one():
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages|length > 1 %}" + endless + "{% endif %}ok"
    with ChatTemplate(source, seconds=0.5) as template:
        with pytest.raises(TemplateError):
            template.render(CHAT)
        assert template.render(CHAT[:1]) == "ok"


def test_a_template_that_is_too_long():
    with pytest.raises(TemplateError, match="at most 1 MiB"):
        ChatTemplate("x" * ((1 << 20) + 1))


@pytest.mark.parametrize(
    "options",
    [
        {"unknown": 1}, {"messages_": []}, {"enable_thinking": "yes"}, {"enable_thinking": 1},
        {"reasoning_effort": "huge"}, {"reasoning_effort": True}, {"clear_thinking": None},
    ],
)  # fmt: skip
def test_options_are_listed_ones(options):
    with pytest.raises(UsageError) as caught:
        render("x", **options)
    assert caught.value.where in options


def test_options_reach_the_template():
    source = "{{ enable_thinking }} {{ reasoning_effort }} {{ clear_thinking is defined }}"
    assert render(source, enable_thinking=False, reasoning_effort="high") == "False high False"


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ("text", "messages"),
        ([5], r"messages\[0\]"),
        ([{"role": "user"}, {"content": "x"}], r"messages\[1\].role"),
        ([{"role": "user", "content": object()}], "messages"),
        ([{"role": "user", "content": float("nan")}], "messages"),
    ],
)
def test_bad_messages(messages, where):
    with pytest.raises(UsageError, match=f"^{where}: "):
        render("x", messages)


def test_lone_surrogates_survive_the_pipe():
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "a\ud800b"}]) == "a\ud800b"


def test_messages_are_data():
    """Template syntax inside a message stays text."""
    content = "{{ 7 * 7 }}{% raw %}"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": content}]) == content
    rendered = render("{{ messages | tojson }}", [{"role": "user", "content": content}])
    assert json.loads(rendered)[0]["content"] == content
