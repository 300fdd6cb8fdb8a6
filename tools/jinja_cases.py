#!/usr/bin/env python3
"""Writes tests/data/jinja/cases.jsonl: small templates, their context, and what Python's jinja2 makes of them in the
environment that Hugging Face uses for chat templates. With --fuzz N it writes N random templates to stdout instead, which
is how the test Jinja.RandomTemplatesMatchPython compares live."""
import argparse
import copy
import datetime
import json
import pathlib
import random

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 1, 15, 10, 30, 0)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


CONTEXT = {
    "s": "Hello, World", "u": "Zürich – 日本 \"q\" 'a'", "blank": "  a b\t c \n", "lines": "one\ntwo\r\n\nfour", "empty": "",
    "i": 7, "neg": -3, "f": 2.5, "big": 1e22, "tiny": 1.5e-7, "yes": True, "no": False, "nil": None,
    "list": [3, 1, 2], "words": ["b", "A", "c"], "mixed": [1, "a", None, 2.0, [1], {"k": "v"}], "nothing": [],
    "d": {"b": 1, "a": [1, 2], "items": "shadow", "n": {"x": {"y": "deep"}}},
    "people": [{"name": "Bo", "age": 3, "tags": ["x"]}, {"name": "al", "age": 1}, {"name": "Cy", "age": 3}],
    "messages": [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": None}],
}

TEMPLATES = r"""
{{ s }} {{ i }} {{ f }} {{ yes }} {{ no }} {{ nil }} {{ missing }}|
{{ big }} {{ tiny }} {{ 1.0 }} {{ 1e16 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100.0 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }}
{{ list }} {{ mixed }} {{ d }} {{ (1,) }} {{ (1, 'a') }} {{ [] }} {{ {} }} {{ u|list|length }} {{ [u] }}
{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 4 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - i }} {{ + i }} {{ yes + yes }} {{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }}
{{ 'a' + 'b' }} {{ 'a' * 3 }} {{ [1] + [2] }} {{ [1] * 2 }} {{ (1,) + (2,) }} {{ 3 * 'x' }} {{ 'a' ~ 1 ~ nil ~ 2.0 ~ missing ~ [1] }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' + nil }}
{{ missing + 'a' }}
{{ missing.x }}
{{ d.nope }}|{{ d['nope'] }}|{{ list[9] }}|{{ d.nope is defined }}
{{ d.nope.x }}
{{ nil.x }}|{{ nil.x is defined }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ nil == none }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 2 >= 2 }} {{ 1 != 2 }}
{{ 'a' < 1 }}
{{ missing < 1 }}
{{ missing == missing2 }} {{ missing == none }} {{ not missing }} {{ missing is none }}
{{ 'ell' in s }} {{ 1 in list }} {{ 'a' in d }} {{ 9 not in list }} {{ 'x' in missing }} {{ 3 in (1, 2) }}
{{ 1 in s }}
{{ 'a' in nil }}
{{ 1 in 5 }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or nil }} {{ not 1 }} {{ not not 1 }} {{ 1 if yes else 2 }} {{ 1 if no }}| {{ 'a' if no else 'b' if no else 'c' }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[::2] }} {{ list[::-1] }} {{ list[1:] }} {{ list[:-1] }} {{ u[1:3] }} {{ u[::-1] }} {{ s[10:2:-3] }} {{ list[5:] }} {{ (1,2,3)[1:] }}
{{ s[::0] }}
{{ list['a'] }}|{{ s[99] }}|{{ d[1] }}|{{ list[0] }} {{ d.a[1] }} {{ d['n']['x'].y }} {{ people.0.name }} {{ list.0 }}
{{ d.items }}
{{ d['items'] }} {{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.keys() }} {{ d.items() }}
{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.b }} {{ d.n.x.y }}
{{ list.append(4) }}
{{ d.pop('a') }}
{{ list.append is defined }}|{{ list.append }}|{{ s.__class__ }}|{{ s.upper is defined }}
{{ s.__class__.__mro__ }}
{{ ''.__class__() }}
{{ s.nope() }}
{{ s() }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.swapcase() }} {{ 'straße ÄÖ'.upper() }} {{ 'ÄÖ'.lower() }} {{ 'hello wORLD'.capitalize() }}
[{{ blank.strip() }}] [{{ blank.lstrip() }}] [{{ blank.rstrip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ 'xyab'.lstrip('yx') }}] [{{ '\u00a0a\u2003'.strip() }}]
{{ 'a,b,,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b c '.split(None, 1) }} {{ ' a b c '.rsplit(None, 1) }} {{ 'a<think>b</think>c'.split('</think>')[-1] }}
{{ s.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a-b'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'ab'.partition('-') }}
{{ s.startswith('Hell') }} {{ s.endswith('d') }} {{ s.startswith(('x', 'H')) }} {{ s.startswith('ello', 1) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('z') }} {{ s.index('W') }} {{ s.count('l') }} {{ u.find('本') }}
{{ s.index('z') }}
{{ 'a'.join(['x', 'y']) }} {{ ', '.join(words) }} {{ 'abc'.replace('b', 'x') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }} {{ 'x'.join('abc') }}
{{ ','.join([1, 2]) }}
{{ 'a'.center(5, '*') }} {{ 'ab'.center(5, '*') }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'a\tb'.expandtabs(4) }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ 'Ab'.isupper() }} {{ 'ab'.islower() }} {{ ''.isalpha() }} {{ 'Ab Cd'.istitle() }} {{ 'ab'.isidentifier() }} {{ 'é'.isascii() }}
{{ '%s is %d and %.2f' % ('x', 3, 2.5) }} {{ '%5d|%-5d|%05d|%+d' % (1, 2, 3, 4) }} {{ '%x %X %o %#x' % (255, 255, 8, 255) }} {{ '%r %s' % ('a', [1]) }} {{ '%(a)s' % {'a': 1} }} {{ '%%' % () }} {{ '%e %g' % (12345.678, 0.0001) }} {{ '%5.1f|%s' % (2.25, nil) }}
{{ '%s' % (1, 2) }}
{{ '%s %s' % 1 }}
{{ '%d' % 'x' }}
{{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=1) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{!r}'.format('a', 'b', 'c', 42, 3.14159, 1234567, 255, 'q') }} {{ '{{}}'.format() }} {{ '{:e}'.format(1.5) }} {{ '{:%}'.format(0.25) }}
{{ '{} {}'.format(1) }}
{{ list|length }} {{ s|length }} {{ d|length }} {{ u|length }} {{ missing|length }} {{ list|count }}
{{ nil|length }}
{{ list|first }} {{ list|last }} {{ nothing|first }}| {{ s|first }} {{ s|last }} {{ d|first }}
{{ list|sort }} {{ list|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|join(' ') }}
{{ mixed|sort }}
{{ list|reverse|list }} {{ s|reverse }} {{ list|max }} {{ list|min }} {{ words|max }} {{ list|sum }} {{ people|sum(attribute='age') }} {{ nothing|sum }} {{ words|min }}
{{ list|join }} {{ list|join(', ') }} {{ people|join('-', attribute='name') }} {{ mixed|join('|') }} {{ s|join('.') }}
{{ nil|join }}
{{ people|map(attribute='name')|list }} {{ words|map('upper')|list }} {{ people|map(attribute='tags', default=[])|list }} {{ list|map('string')|join('+') }}
{{ people|map(attribute='tags.0')|list }}
{{ people|selectattr('tags')|list|length }} {{ people|selectattr('age', 'equalto', 3)|map(attribute='name')|list }} {{ people|rejectattr('age', 'eq', 3)|list|length }} {{ list|select('odd')|list }} {{ list|reject('odd')|list }} {{ list|select('greaterthan', 1)|list }} {{ mixed|select|list }} {{ people|selectattr('tags', 'defined')|list|length }}
{{ people|selectattr('age', 'nonsense')|list }}
{{ [1, 2, 1, 'a', 'A']|unique|list }} {{ list|batch(2)|list }} {{ list|batch(2, 'x')|list }} {{ [1,2,3,4,5]|slice(2)|list }} {{ d|dictsort }} {{ d|items|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'a': 2, 'b': 1}|dictsort(by='value') }} {{ {'a': 2, 'b': 1}|dictsort(reverse=true) }}
{% for k, v in people|groupby('age') %}{{ k }}:{{ v|map(attribute='name')|join(',') }};{% endfor %}
{{ s|upper }} {{ s|lower }} {{ s|title }} {{ 'foo bar-baz (qux)'|title }} {{ 'hELLO'|capitalize }} {{ blank|trim }} {{ 'xax'|trim('x') }} {{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 1) }} {{ 5|string + 'a' }} {{ s|wordcount }} {{ s|center(20) }}|
{{ lines|indent }} {{ lines|indent(2, true) }} {{ lines|indent('> ', first=true, blank=true) }} {{ 'a\n\nb'|indent(2) }} {{ ''|indent(2) }}|
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '..', 0) }}
{{ '42'|int }} {{ '42.7'|int }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ '0x1f'|int(base=16) }} {{ 3.9|int }} {{ nil|int }} {{ true|int }} {{ ' 5 '|int }} {{ '1_000'|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ '1e3'|float }}
{{ missing|int }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0, 'floor') }} {{ 7|round }} {{ -3|abs }} {{ 1234567|filesizeformat }} {{ 500|filesizeformat }} {{ 2048|filesizeformat(true) }}
{{ missing|default('x') }} {{ ''|default('x') }}| {{ ''|default('x', true) }} {{ nil|default('x') }} {{ nil|default('x', boolean=true) }} {{ missing|d('y') }} {{ d.q|default('z') }}
{{ missing.a|default('x') }}
{{ d|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ [1, 2.0, true, none, 'a']|tojson }} {{ '</b>&\t\u0001'|tojson }} {{ '😀'|tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, 1.5: 4}|tojson }} {{ big|tojson }} {{ (1, 2)|tojson }}
{{ d|tojson(indent=2) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ [[]]|tojson(indent=1) }} {{ d|tojson(indent=4, sort_keys=true) }} {{ d|tojson(separators=(',', ':')) }} {{ [1]|tojson(indent='\t') }}
{{ missing|tojson }}
{{ list|map('string')|tojson }}
{{ '<a>'|e }} {{ '<a>'|safe + '<b>' }} {{ '<a>'|safe ~ '<b>' }} {{ ('<a>'|safe)|upper }} {{ '<a>'|escape|safe }} {{ ('%s'|safe) % 'x' }} {{ '<a>'|safe|replace('a', '<') }} {{ ['<a>'|safe] }} {{ '<p>a  b</p>'|striptags }} {{ 'a b/ü'|urlencode }} {{ {'a': 'b c'}|urlencode }}
{{ s|nonsense }}
{% if no %}{{ s|nonsense }}{% endif %}fine
{{ s is nonsense }}
{{ i is odd }} {{ i is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ s is string }} {{ i is number }} {{ i is integer }} {{ f is float }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ yes is integer }} {{ nil is none }} {{ d is mapping }} {{ list is sequence }} {{ list is iterable }} {{ i is iterable }} {{ s is sequence }} {{ d is sequence }} {{ missing is iterable }} {{ range is callable }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is in [1] }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 1 is sameas 1 }} {{ 'a' is not none }} {{ missing is undefined }} {{ missing is not defined }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ i is not odd or yes }} {{ 1 is ne 2 }} {{ 5 is ge 5 }} {{ none is mapping }}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}
{% for x in nothing %}x{% else %}empty{% endfor %} {% for x in missing %}x{% else %}none{% endfor %} {% for c in 'añb' %}{{ c }}.{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}
{% for x in nil %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in [1, 2, 3, 4] if x is even %}{{ x }}/{{ loop.length }}{% endfor %} {% for x in range(6) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in range(5, 0, -2) %}{{ x }}{% endfor %} {{ range(3) }} {{ range(3)|list }}
{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% set x = 1 %}{% for i in list %}{{ x }}{% set x = i %}{% endfor %}{{ x }} {% if true %}{% set x = 9 %}{% endif %}{{ x }} {% with x = 5, y = x %}{{ x }}{{ y }}{% set x = 6 %}{% endwith %}{{ x }}
{% set ns = namespace(a=1, found=false) %}{% for i in list %}{% set ns.a = ns.a + i %}{% set ns.found = true %}{% endfor %}{{ ns.a }}{{ ns.found }}{{ ns.nope }}|{{ ns['a'] }} {{ namespace({'q': 2}).q }} {{ ns }}
{% set d.a = 1 %}
{% set a, b = 1, 'x' %}{{ a }}{{ b }} {% set c %}block {{ a }}{% endset %}{{ c }}|{% set t | upper %}text{% endset %}{{ t }} {% filter upper|replace('A', 'o') %}abc{{ b }}{% endfilter %} {% set e = (1, 2) %}{{ e }} {% set g = 1, %}{{ g }}
{% macro m(a, b='B', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=5, a=4) }}{{ m() }}{{ m.name }}{{ m.arguments }}{{ m(1, c=m(2)) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }} {% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }} {% macro o() %}{{ late }}{% endmacro %}{% set late = 'L' %}{{ o() }}
{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('p') %}in {{ s }}{% endcall %} {% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each(list) %}<{{ x }}>{% endcall %}
{% set j = joiner('|') %}{{ j() }}a{{ j() }}b {% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict(d, b=3).b }}
{{ raise_exception('no: ' ~ i) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%d %b %Y, %A %B %j %-d') }} {{ strftime_now('') }}|
{{ range(1000000) }}
{{ [1, 2](0) }}
{# comment #}a{#- b -#}  c  {#  d #}
  {% if yes %}
    x
  {% endif %}
y{% if yes %} {% endif %} z
  {{- s -}}  |  {{ s }}  {%- if yes -%}  a  {%- endif +%}
b
{%+ if yes %}  keep{% endif %}
{% raw %}{{ not }} {% rendered %}{% endraw %} after {%- raw -%}  x  {%- endraw -%}  y
{% generation %}gen {{ s }}{% endgeneration %} {% block b %}blk{% endblock b %} {% print 1, 'a' %}
{{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1,} }} {{ [1,] }} {{ {'a': 1, 'a': 2} }} {{ {1: 'x'}[1] }} {{ {true: 'y'}[1] }}
{{ {[1]: 2} }}
{{ "a\tb\\n\x41\u00e9\'" }} {{ 'it''s' }} {{ "mixed 'quotes'" }} {{ 'a' 'b' }} {{ "\q" }} {{ '\101' }}
{{ [u, 'a\nb', "it's", '\u200b', '\x00'] }}
{{ s if
 yes
 else 1 }}
{{ 1 if }}
{% if %}{% endif %}
{% for x in list %}
{% endfor %}{% endif %}
{% nonsense %}
{{ s
{{ 'a }}
{{ (1, 2 }}
{% include 'x' %}
{{ s | upper | lower | replace('h', 'J') | length }} {{ (s | upper).lower() }} {{ s|upper ~ '!' }} {{ -1|abs }} {{ 'a' in s|lower }} {{ not s|length > 3 }} {{ 2 * 3 ~ 4 }}
{{ 1 ~ 2 + 3 }}
{{ messages[0]['content'] + messages[0].role }} {{ messages[-1].content is none }} {{ messages|map(attribute='role')|join }} {{ messages[1:]|length }} {{ messages|selectattr('content')|list|length }}
{{ messages[1].content + 'x' }}
{{ loop is defined }} {{ caller is defined }}
{{ s.split(', ')[1][0:3].upper().lower()|title }} {{ (list + [4])|last }} {{ (list|sort)[0] }} {{ list|sort|first }} {{ d.a|join('') }} {{ people[0].tags[0] }} {{ people[1].tags is defined }} {{ people[1]['tags']|default('none') }}
{{ 10 // 3 * 3 + 10 % 3 }} {{ 2 - -2 }} {{ 1.5 + 1 }} {{ 3 - 1.0 }} {{ 2 * 1.5 }} {{ i / f }} {{ 1e3 }} {{ 1E3 }} {{ 5 % 2.5 }} {{ 0.1 * 3 }} {{ 1e308 * 10 }} {{ 3 // 0.7 }}
{{ yes is sameas true }} {{ list is sameas list }} {{ [1] is sameas [1] }} {{ none is sameas none }}
{{ f(*list) }}
{% macro t(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ t(*list) }}{{ t(**{'a': 1, 'b': 2, 'c': 3}) }}{{ t(1, *[2, 3]) }}
{{ list|attr('append') }}|{{ d|attr('b') }}|{{ s|attr('upper') is defined }}
{% set x = [] %}{% for m in messages %}{% set x = x + [m.role] %}{% endfor %}{{ x }}
{% for m in messages %}{% if loop.first and m.role == 'user' %}U{% elif m.content is none %}N{% else %}E{% endif %}{% endfor %}
{% for p in people %}{% for t in p.tags %}{{ loop.index }}{{ t }}{% else %}-{% endfor %}{{ loop.index }}{% endfor %}
""".strip("\n")


def split_templates(text):
    """One template a line; a line that leaves a tag open, or is part of a layout case, continues on the next."""
    out, pending = [], ""
    layout = {"  {% if yes %}": 4, "  {{- s -}}  |  {{ s }}  {%- if yes -%}  a  {%- endif +%}": 2, "{{ s if": 3,
              "{% for x in list %}": 2}
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        n = layout.get(lines[at], 1)
        out.append("\n".join(lines[at:at + n]))
        at += n
    return out


ATOMS = ["s", "u", "i", "neg", "f", "yes", "nil", "list", "words", "mixed", "d", "people", "missing", "1", "0", "2.5", "'a'",
         "'a b'", "''", "[1, 'x']", "{'k': 1}", "(1, 2)", "none", "true", "d.a", "d['n']", "people[0].name", "-1"]
FILTERS = ["upper", "lower", "length", "trim", "string", "list", "first", "last", "sort", "reverse|list", "join(',')", "int",
           "float", "abs", "tojson", "default('q')", "default('q', true)", "title", "capitalize", "unique|list", "safe", "e",
           "map('string')|list", "select|list", "reject('none')|list", "replace('a', 'bb')", "indent(2)", "items|list",
           "dictsort", "sum", "max", "min", "round", "batch(2)|list", "tojson(indent=1)", "wordcount", "truncate(5)",
           "map(attribute='name')|list", "selectattr('age')|list", "center(9)", "format(1)", "urlencode"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "odd", "true", "eq(1)", "in([1, 'a'])",
         "not none", "boolean", "lower", "integer", "float", "sameas(none)", "divisibleby(2)"]
POSTFIX = ["[0]", "[-1]", "[1:]", "[::-1]", "[:2]", ".a", ".name", "['k']", ".upper()", ".split()", ".strip()", ".items()",
           ".get('k')", ".get('a', 1)", ".startswith('a')", ".replace('a', '')", ".keys()|list", ".find('a')", ".title()",
           ".split('a')", ".count(1)", ".join(['x', 'y'])", ".zfill(5)", ".isdigit()", ".partition(' ')"]


def random_expression(rng, depth):
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(ATOMS)
    inner = lambda: random_expression(rng, depth - 1)
    kind = rng.randrange(9)
    if kind < 2:
        return f"({inner()} {rng.choice(OPERATORS)} {inner()})"
    if kind < 5:
        return f"({inner()}|{rng.choice(FILTERS)})"
    if kind == 5:
        return f"({inner()} is {rng.choice(TESTS)})"
    if kind == 6:
        return f"({inner()} if {inner()} else {inner()})"
    if kind == 7:
        # Jinja folds constants when it prints, which turns the error of {{ (1)[1:] }} into undefined: `yes` prevents that.
        return f"({inner()} if yes else s){rng.choice(POSTFIX)}"
    return rng.choice([f"[{inner()}, {inner()}]", f"(not {inner()})", f"(-{inner()})", f"'%s|%s' % ({inner()}, {inner()})",
                       f"{{'k': {inner()}}}", f"'{{}}'.format({inner()})"])


def random_template(rng):
    out, e = [], lambda: random_expression(rng, rng.randrange(4))
    space = lambda: rng.choice(["", " ", "\n", "  \n ", "\t", "x"])
    tag = lambda body: "{%" + rng.choice(["", "-", "+"]) + " " + body + " " + rng.choice(["", "-"]) + "%}"
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(8)
        show = "{{" + rng.choice(["", "-"]) + f" {e()} " + rng.choice(["", "-"]) + "}}"
        if kind < 3:
            out.append(show)
        elif kind == 3:
            out.append(tag(f"if {e()}") + space() + show + space() + tag("else") + space() + tag("endif"))
        elif kind == 4:
            out.append(tag(f"for x in {e()}") + space() + "{{ x }}{{ loop.index }}{{ loop.last }}" + space() + tag("endfor"))
        elif kind == 5:
            out.append(tag(f"set v = {e()}") + space() + "{{ v }}")
        elif kind == 6:
            out.append(tag(f"macro m(a, b={e()})") + space() + "{{ a }}{{ b }}" + tag("endmacro") + "{{ m(" + e() + ") }}")
        else:
            out.append("{#" + rng.choice(["", "-"]) + " c " + rng.choice(["", "-"]) + "#}")
        out.append(space())
    return "".join(out)


def render(env, source, context):
    try:
        return {"output": env.from_string(source).render(**copy.deepcopy(context))}
    except Exception as e:  # whatever Python raises is the template's error
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    env = environment()
    rng = random.Random(args.seed)
    sources = [random_template(rng) for _ in range(args.fuzz)] if args.fuzz else split_templates(TEMPLATES)
    rows = [json.dumps({"context": CONTEXT}, ensure_ascii=False)]
    for source in sources:
        row = {"template": source, **render(env, source, CONTEXT)}
        if " at 0x" in row.get("output", ""):  # an address is nothing to compare
            continue
        rows.append(json.dumps(row, ensure_ascii=False))
    text = "\n".join(rows) + "\n"
    if args.fuzz:
        print(text, end="")
    else:
        path = pathlib.Path(__file__).resolve().parent.parent / "tests/data/jinja/cases.jsonl"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
