"""Chat templates from model files: what ordinary ones need works, and hostile ones cost little and reach nothing."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from cacheir.errors import MalformedModelError, RequestError
from cacheir.runtime import template_budget
from cacheir.runtime.chat_template import ChatTemplate

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hello "}]


def render(source, messages=HELLO, tokens=None, **options):
    return ChatTemplate(source, tokens or {}).render(messages, **options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }}{% endfor %}", "[system]Be brief.[user]Hello"),
        ("{{ bos_token }}{{ messages[-1]['content'] }}", "<s> Hello "),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc", "a\nb\nc"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.last }}{% endfor %}",
            "True",
        ),
        ("{% for m in messages %}{{ loop.length }}{% break %}{% endfor %}", "2"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.length }}{% endfor %}", "1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for n in [1, [2, [3]]] recursive %}{{ loop(n) if n is iterable else n }}{% endfor %}", "123"),
        ("{{ {'b': 'é<', 'a': [1, none, true]} | tojson }}", '{"b": "é<", "a": [1, null, true]}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f(1) }}", "<a><1>"),
        ("{% set x %}a{{ 1 + 1 }}{% endset %}{{ x }}", "a2"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ 'a,b,c'.split(',')[1:] | join('-') }}", "b-c"),
        ("{{ 'x<think>y</think>z'.split('</think>')[-1].lstrip('\n') }}", "z"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{}/{:>3}'.format('b', 1) }}", "a-007b/  1"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}", "1"),
        ("{{ 'ab' in 'cabd' and messages is sequence and tools is none }}", "True"),
        ("{{ 'x' * 3 }}{{ [0] * 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "xxx[0, 0]10243"),
        ("{{ undefined_name is defined }}{{ undefined_name or 'none' }}", "Falsenone"),
        ("{{ 'a\nb' | indent(2) }}{{ 1.25 | round(1) }}{{ 'A' | lower | replace('a', 'bc') }}", "a\n  b1.2bc"),
        ("{{ dict(a=1) | dictsort | first | last }}", "1"),
        ("{{ extra }}", "value"),
    ],
)
def test_what_templates_use(source, text):
    assert render(source, tokens={"bos_token": "<s>"}, variables={"extra": "value"}) == text


def test_the_generation_prompt_is_asked_for():
    source = "{{ messages | length }}{% if add_generation_prompt %}>{% endif %}{{ (tools or []) | length }}"
    assert render(source) == "2>0"
    assert render(source, add_generation_prompt=False, tools=[{}]) == "21"


def test_the_time_of_day_is_there():
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_messages_cannot_be_replaced_by_variables():
    assert render("{{ messages | length }}", variables={"messages": [], "add_generation_prompt": 5}) == "2"


def test_a_template_says_what_it_refuses():
    with pytest.raises(RequestError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 'a' ", "{% for x in y %}", "{{ 'a' | no_such_filter }}", "{% endif %}"]
)
def test_a_template_that_is_wrong_is_reported_when_it_is_loaded(source):
    with pytest.raises(MalformedModelError, match="chat template, line 1"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 400 + "{% endif %}" * 400, "x" * 1_000_001]
)
def test_a_template_that_cannot_be_compiled_is_reported_when_it_is_loaded(source):
    with pytest.raises(MalformedModelError, match="chat template"):
        ChatTemplate(source, {})


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['os'] }}",
    "{{ strftime_now.__globals__['os'] }}",
    "{{ namespace.__init__.__globals__['os'] }}",
    "{{ self.__init__.__globals__.os }}",
    "{{ '{0.__class__.__init__}'.format('a') }}{{ '{0.__class__.__mro__}'.format('a')[0] }}",
    "{{ namespace(__class__=1) }}",
    "{{ dict.mro()[0] }}",
    "{{ range.__class__.__base__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ (1).to_bytes(9, 'big') }}",
    "{% include 'secrets' %}",
    "{% import 'os' as os %}{{ os.name }}",
    "{{ lipsum(n=1) }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_case_a29_nothing_inside_python_is_reached(source):
    with pytest.raises(RequestError, match="chat template"):
        render(source)
    assert HELLO[0] == {"role": "system", "content": "Be brief."} and len(HELLO) == 2


COSTLY = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ ['a'] * 10**9 }}",
    "{{ 9**9**9 }}",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ''.join([ns.x, ns.x]) %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='a\n') %}{% for i in range(60) %}{% set ns.x = ns.x | indent(60, true, true) %}"
    "{% set ns.x = ns.x.replace(' ', '\n') %}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:>1000000000}'.format('a') }}",
    "{{ '{:>{}}'.format('a', 1000000000) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ messages | tojson(separators=('a' * 500000, ':')) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ 10 | round(10**9, 'ceil') }}",
    "{{ ('a' * 90000) | list | join('b' * 90000) }}",
    "{{ ('b' * 90000).join('a' * 90000) }}",
    "{{ ('a' * 90000).replace('a', 'b' * 90000) }}",
    "{{ range(99999) | map('string') | map('replace', '1', 'x' * 90000) | list }}",
    "{{ (['a' * 1000000] * 100000) | length }}",
]


@pytest.mark.parametrize("source", COSTLY)
def test_case_a29_a_template_takes_neither_all_time_nor_all_memory(source, monkeypatch):
    # Tracing makes every allocation slow; the limits themselves are tested below.
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.5)
    monkeypatch.setattr(template_budget, "BASE_SIZE", 500_000)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(RequestError, match="chat template"):
            render(source)
        seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 10
    assert peak < 200e6


@pytest.mark.parametrize("source", ["{{ 'a'.center(10**9) }}", "{{ 'a'.ljust(10**9) }}", "{{ 'a'.zfill(10**9) }}"])
def test_methods_that_pad_are_not_there(source):
    with pytest.raises(RequestError, match="unsafe"):
        render(source)


def test_a_long_conversation_is_within_the_budget():
    source = (
        "{% for m in messages %}{% set content = m.content | trim %}<|im_start|>{{ m.role + '\n' + content }}"
        "{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}<|im_end|>{% endfor %}"
    )
    messages = [{"role": "user", "content": f"{index} " + "word " * 2000} for index in range(200)]
    assert len(render(source, messages)) > 1_900_000


def test_the_limits_themselves():
    with pytest.raises(RequestError, match=r"more than 1000000 loop turns|longer than 2 s"):
        render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    assert len(render("{{ 'a' * 500000 }}")) == 500_000
    with pytest.raises(RequestError, match="more text than any chat"):
        render("{{ 'a' * 3000000 }}")


def test_renderings_share_no_budget():
    template = ChatTemplate("{{ 'a' * 500000 }}", {})
    for _ in range(5):
        assert len(template.render(HELLO)) == 500_000
