"""Writes jinja2.json: what Jinja2 makes of each of its own filters and tests, in the environment that transformers renders in.

    pip install jinja2 && python crates/prompt/tests/data/record_jinja2.py
"""

import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "text": "The quick brown fox jumps over the lazy dog.",
    "long": "supercalifragilisticexpialidocious words\nand a second line that is longer than the first one by far",
    "markup": '<a href="/x?y=1&z=2">Tom & \'Jerry\'</a>',
    "url": "See http://example.org/a?b=c and www.example.com, or mail me@example.com (https://x.org).",
    "empty": "",
    "numbers": [3, 1, 2, 3],
    "floats": [1.5, -2.25, 100.0],
    "words": ["pear", "Apple", "fig", "apple"],
    "people": [
        {"name": "Ann", "age": 31, "city": "Oslo", "home": {"zip": 2}},
        {"name": "bob", "age": 25, "city": "Rome", "home": {"zip": 1}},
        {"name": "Cid", "age": 31, "city": "Oslo", "home": {"zip": 3}},
    ],
    "mapping": {"b": 2, "a": 1, "C": None},
    "nested": {"k": [1, {"x": True, "y": None}], "s": "é\"</script>'"},
    "nothing": None,
    "yes": True,
    "no": False,
    "n": 42,
    "x": 3.14159,
    "big": 1234567890,
}

FILTERS = {
    "abs": ["{{ (-3)|abs }} {{ (-2.5)|abs }}"],
    "attr": [
        "{{ mapping|attr('a') is defined }}",
        "{{ text|attr('nope') is defined }}",
        "{% set ns = namespace(a=1) %}{{ ns|attr('a') }}",
    ],
    "batch": ["{{ numbers|batch(2)|list }}", "{{ numbers|batch(3, 0)|list }}"],
    "capitalize": ["{{ 'hELLO wORLD'|capitalize }}", "{{ ''|capitalize }}"],
    "center": ["[{{ 'ab'|center(7) }}]", "[{{ 'abc'|center(8) }}]", "[{{ text|center }}]"],
    "default": [
        "{{ missing|default('d') }} {{ nothing|default('d') }} {{ nothing|default('d', true) }}",
        "{{ empty|d('x', boolean=true) }} {{ missing|default }}",
        "{{ missing|default(default_value=3) }} {{ 0|default(7, true) }} {{ 0|default(7) }} {{ [] | d('e', boolean=false) }}",
    ],
    "dictsort": [
        "{{ mapping|dictsort }}",
        "{{ {'b': 2, 'a': 3}|dictsort(false, 'value') }}",
        "{{ mapping|dictsort(true) }}",
        "{{ {'b': 2, 'a': 3}|dictsort(reverse=true) }}",
        "{{ {'B': 2, 'a': 2, 'c': 1}|dictsort(by='value', reverse=true) }} {{ {'B': 2, 'a': 2, 'C': 1}|dictsort(true, 'key', true) }}",
    ],
    "escape": ["{{ markup|escape }} {{ markup|e }}"],
    "filesizeformat": [
        "{{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ big|filesizeformat }}",
        "{{ big|filesizeformat(true) }} {{ 1024|filesizeformat(true) }}",
    ],
    "first": ["{{ numbers|first }} {{ 'abc'|first }} {{ []|first is undefined }}"],
    "float": ["{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }}", "{{ ' 1_000.5 '|float }} {{ yes|float }} {{ '1e3'|float }} {{ []|float(default=2.0) }} {{ nothing|float }}"],
    "forceescape": ["{{ '<b>'|safe|forceescape }} {{ markup|forceescape }}"],
    "format": ["{{ '%s, %s!'|format('Hello', n) }} {{ '%05.2f|%x|%-4s|%+d|%%'|format(x, 255, 'a', 7) }}", "{{ '%(a)s'|format(a=1) }}"],
    "groupby": [
        "{% for city, items in people|groupby('city') %}{{ city }}: {{ items|map(attribute='name')|join(',') }};{% endfor %}",
        "{% for g in people|groupby('age') %}{{ g.grouper }}={{ g.list|length }} {% endfor %}",
        "{% for k, v in people|groupby('nope', default='?') %}{{ k }}{{ v|length }}{% endfor %}",
        "{% for k, v in people|groupby('home.zip') %}{{ k }}{% endfor %}",
    ],
    "indent": ["{{ long|indent }}", "{{ 'a\n\nb'|indent(2, true) }}", "{{ 'a\n\nb'|indent(2, blank=true) }}", "{{ 'a\nb'|indent('> ') }}", "{{ 'a\r\nb\n'|indent(1, true, true) }}|{{ ''|indent }}|{{ 'a\n\nb\n'|indent('- ', first=true) }}"],
    "int": ["{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ '0x1f'|int(0, 16) }} {{ '3.7'|int }}", "{{ ' 1_000 '|int }} {{ '-7'|int }} {{ '0b101'|int(base=0) }} {{ 'ff'|int(base=16) }} {{ '1__0'|int(5) }} {{ yes|int }} {{ -3.9|int }} {{ nothing|int(9) }} {{ 'inf'|int(4) }} {{ '-0x1F'|int(base=16) }}"],
    "items": ["{% for k, v in mapping|items %}{{ k }}={{ v }} {% endfor %}"],
    "join": ["{{ numbers|join }} {{ numbers|join(', ') }} {{ people|join('/', attribute='name') }}"],
    "last": ["{{ numbers|last }} {{ 'abc'|last }}"],
    "length": ["{{ numbers|length }} {{ 'né'|length }} {{ mapping|count }}"],
    "list": ["{{ 'abc'|list }} {{ mapping|list }}"],
    "lower": ["{{ 'HeLLo'|lower }}"],
    "map": [
        "{{ people|map(attribute='name')|join(' ') }} {{ words|map('upper')|list }}",
        "{{ people|map(attribute='nope', default='-')|list }} {{ people|map(attribute='home.zip')|list }}",
    ],
    "max": ["{{ numbers|max }} {{ words|max }} {{ words|max(true) }} {{ (people|max(attribute='age')).name }}", "{{ []|max is defined }} {{ (people|max(attribute='home.zip')).name }} {{ [[1, 5], [2, 4]]|max(attribute=1) }} {{ people|map(attribute='name')|max(true) }}"],
    "min": ["{{ numbers|min }} {{ words|min }} {{ words|min(case_sensitive=true) }} {{ (people|min(attribute='age')).name }}"],
    "pprint": [
        "{{ numbers|pprint }}",
        "{{ 'a'|pprint }}",
        "{{ people|pprint }}",
        "{{ nested|pprint }} {{ mapping|pprint }} {{ (1,)|pprint }} {{ n|pprint }} {{ nothing|pprint }} {{ {}|pprint }}",
        "{{ long|pprint }}",
        "{{ {'k': long, 'l': [long, numbers * 20], 'm': {'n': (long, 1)}}|pprint }}",
        "{{ ['x' * 100, 'y' * 77, 'z' * 76]|pprint }}",
        "{{ range(40)|list|pprint }}",
    ],
    "random": ["{{ [5]|random }}"],
    "reject": ["{{ numbers|reject('odd')|list }} {{ [0, 1, '']|reject|list }}"],
    "rejectattr": ["{{ people|rejectattr('age', 'eq', 31)|map(attribute='name')|list }}"],
    "replace": ["{{ 'aaa'|replace('a', 'b') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '-') }}"],
    "reverse": ["{{ 'abc'|reverse }} {{ numbers|reverse|list }}"],
    "round": ["{{ 42.55|round }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ x|round(3) }} {{ 1234|round(-2) }} {{ 2.5|round }}"],
    "safe": ["{{ markup|safe }}"],
    "select": ["{{ numbers|select('odd')|list }} {{ [0, 1, '']|select|list }} {{ numbers|select('gt', 2)|list }}"],
    "selectattr": ["{{ people|selectattr('age', 'gt', 30)|map(attribute='name')|list }} {{ people|selectattr('name')|list|length }}"],
    "slice": ["{{ range(7)|slice(3)|list }}", "{{ range(7)|slice(3, 'x')|list }}"],
    "sort": [
        "{{ numbers|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ numbers|sort(reverse=true) }}",
        "{{ people|sort(attribute='age,name')|map(attribute='name')|list }} {{ people|sort(attribute='home.zip')|map(attribute='name')|list }}",
    ],
    "string": ["{{ n|string ~ x|string ~ numbers|string }}"],
    "striptags": ["{{ '<p>a  <b>b</b>\n<!-- c --> &amp; d</p>'|striptags }}"],
    "sum": ["{{ numbers|sum }} {{ people|sum(attribute='age') }} {{ numbers|sum(start=10) }}"],
    "title": ["{{ \"hello wORLD it's o'neil-smith (foo)\"|title }}"],
    "tojson": [
        "{{ nested|tojson }}",
        "{{ mapping|tojson(indent=2) }}",
        "{{ nested|tojson(ensure_ascii=true) }} {{ mapping|tojson(sort_keys=true) if false else '' }}",
        "{{ mapping|tojson(separators=(',', ':')) }} {{ floats|tojson }}",
    ],
    "trim": ["[{{ '  a '|trim }}] [{{ 'xxaxx'|trim('x') }}]"],
    "truncate": [
        "{{ text|truncate(15) }}|{{ text|truncate(15, true) }}|{{ text|truncate(15, end='') }}",
        "{{ text|truncate(42) }}|{{ text|truncate(40, leeway=0) }}|{{ 'short'|truncate }}|{{ long|truncate(20, false, '…', 0) }}",
    ],
    "unique": ["{{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }} {{ people|unique(attribute='city')|map(attribute='name')|list }}"],
    "upper": ["{{ 'straße'|upper }}"],
    "urlencode": ["{{ 'a b/ü?&'|urlencode }} {{ {'a': 1, 'b c': 'd&'}|urlencode }} {{ [('x', 'y z')]|urlencode }}"],
    "urlize": ["{{ url|urlize }}", "{{ url|urlize(15, true) }}", "{{ url|urlize(target='_blank', rel='x') }}", "{{ 'nothing to see'|urlize }}"],
    "wordcount": ["{{ text|wordcount }} {{ \"it's a né-word\"|wordcount }} {{ ''|wordcount }}"],
    "wordwrap": [
        "{{ text|wordwrap(15) }}",
        "{{ long|wordwrap(12) }}",
        "{{ long|wordwrap(12, false) }}",
        "{{ text|wordwrap(20, wrapstring='|') }}",
        "{{ 'well-known co-op'|wordwrap(6, true, '/', false) }}|{{ 'well-known co-op'|wordwrap(6, wrapstring='/') }}",
    ],
    "xmlattr": ["<p{{ {'class': 'a \"b\"', 'id': n, 'gone': nothing}|xmlattr }}>", "<p {{ {'a': 1}|xmlattr(false) }}>", "<p{{ {}|xmlattr }}>"],
}

TESTS = {
    "boolean": ["{{ yes is boolean }} {{ 1 is boolean }}"],
    "callable": [
        "{{ range is callable }} {{ n is callable }}",
        "{% macro m() %}{% endmacro %}{{ m is callable }} {{ mapping is callable }} {{ joiner() is callable }} {{ cycler(1) is callable }} {{ text is callable }}",
    ],
    "defined": ["{{ n is defined }} {{ missing is defined }} {{ mapping.nope is defined }}"],
    "divisibleby": ["{{ 6 is divisibleby(3) }} {{ 7 is divisibleby 3 }}"],
    "eq": ["{{ 1 is eq(1.0) }} {{ 'a' is equalto 'b' }} {{ 1 is sameas 1 }} {{ numbers|select('==', 3)|list }}"],
    "escaped": ["{{ 'a' is escaped }} {{ 'a'|safe is escaped }}"],
    "even": ["{{ 2 is even }} {{ 3 is even }}"],
    "false": ["{{ no is false }} {{ 0 is false }}"],
    "filter": ["{{ 'upper' is filter }} {{ 'nope' is filter }}"],
    "float": ["{{ x is float }} {{ n is float }}"],
    "ge": ["{{ 2 is ge 2 }} {{ numbers|select('>=', 3)|list }}"],
    "gt": ["{{ 2 is gt 2 }} {{ 3 is greaterthan 2 }} {{ numbers|select('>', 2)|list }}"],
    "in": ["{{ 1 is in numbers }} {{ 'q' is in text }} {{ 9 is not in numbers }}"],
    "integer": ["{{ n is integer }} {{ x is integer }} {{ yes is integer }}"],
    "iterable": ["{{ numbers is iterable }} {{ 'a' is iterable }} {{ n is iterable }} {{ mapping is iterable }}", "{{ nothing is iterable }} {{ missing is iterable }} {{ nothing is iterable and nothing|length > 0 }}"],
    "le": ["{{ 2 is le 2 }} {{ numbers|select('<=', 1)|list }}"],
    "lower": ["{{ 'abc' is lower }} {{ 'aBc' is lower }}"],
    "lt": ["{{ 1 is lt 2 }} {{ 1 is lessthan 1 }} {{ numbers|select('<', 2)|list }}"],
    "mapping": ["{{ mapping is mapping }} {{ numbers is mapping }}"],
    "ne": ["{{ 1 is ne 2 }} {{ numbers|select('!=', 3)|list }}"],
    "none": ["{{ nothing is none }} {{ empty is none }}"],
    "number": ["{{ n is number }} {{ x is number }} {{ 'a' is number }} {{ yes is number }}"],
    "odd": ["{{ 3 is odd }}"],
    "sameas": ["{{ nothing is sameas none }} {{ yes is sameas true }} {{ 1 is sameas true }}"],
    "sequence": ["{{ numbers is sequence }} {{ 'a' is sequence }} {{ mapping is sequence }} {{ n is sequence }}", "{{ (1, 2) is sequence }} {{ nothing is sequence }} {{ range(3) is sequence }}", "{{ numbers|map('string') is sequence }}"],
    "string": ["{{ text is string }} {{ n is string }}"],
    "test": ["{{ 'odd' is test }} {{ 'nope' is test }}"],
    "true": ["{{ yes is true }} {{ 1 is true }}"],
    "undefined": ["{{ missing is undefined }} {{ nothing is undefined }}"],
    "upper": ["{{ 'ABC' is upper }} {{ 'AbC' is upper }}"],
}

OTHERS = [
    "a{% generation %}b {{ n }}{% endgeneration %}c",
    "{%- generation -%} x {%- endgeneration -%} y",
    "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set ns = namespace(a=1) %}{% for i in numbers %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% for p in people %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{{ loop.previtem.name if not loop.first }}{{ loop.nextitem.name if not loop.last }}{{ loop.changed(p.city) }} {% endfor %}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(2) %}c{% endcall %}",
    "{% filter upper %}abc {{ n }}{% endfilter %}",
    "{% set block %}a{{ n }}{% endset %}{{ block }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}",
    "{{ joiner is defined }}{% set comma = joiner(', ') %}{% for i in numbers %}{{ comma() }}{{ i }}{% endfor %}",
    "{% set c = cycler('odd', 'even') %}{{ c.next() }} {{ c.next() }} {{ c.current }} {{ c.next() }}",
    "{{ dict(a=1, b=2) }}",
    "{{ lipsum is defined }}",
    "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ -7 // 2 }} {{ 1 / 2 }} {{ 'a' * 3 }} {{ 'a' ~ 1 }}",
    "{{ text[4:9] }} {{ text[::-1][:3] }} {{ numbers[-1] }} {{ 'b' in 'abc' }} {{ 1 if no else 2 }}",
    "{{ text.split(' ')[1].upper() }} {{ ' a '.strip() }} {{ 'a-b'.partition('-') }} {{ mapping.get('zz', 5) }}",
    "{{ 'a,b'.split(',') | join('+') }} {{ 'x'.join(['1', '2']) }} {{ 'abc'.title() }}",
    "{{ '%d items' % 3 }}",
    "{% set c = cycler(1, 2, 3) %}{{ c.next() }}{{ c.next() }}{{ c.reset() if false else '' }}{% for i in range(5) %}{{ c.next() }}{% endfor %}",
    "{% set comma = joiner() %}[{{ comma() }}][{{ comma() }}][{{ comma() }}]",
]


class Generation(jinja2.ext.Extension):
    """transformers' mark of what an assistant says, which writes its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made.filters["tojson"] = tojson
    return made


def main():
    made = environment()
    aliases = {"count": "length", "d": "default", "e": "escape"}
    assert {aliases.get(name, name) for name in made.filters} == set(FILTERS), set(made.filters) ^ set(FILTERS)
    names = {
        "equalto": "eq", "==": "eq", "!=": "ne", ">": "gt", "greaterthan": "gt", ">=": "ge", "<": "lt",
        "lessthan": "lt", "<=": "le",
    }
    assert {names.get(name, name) for name in made.tests} == set(TESTS), set(made.tests) ^ set(TESTS)
    rows = []
    groups = [("filter", FILTERS), ("test", TESTS), ("other", {"other": OTHERS})]
    for kind, group in groups:
        for name, templates in group.items():
            for template in templates:
                rows.append([kind, name, template, made.from_string(template).render(**CONTEXT)])
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    context = json.dumps(CONTEXT, ensure_ascii=False)
    out = pathlib.Path(__file__).with_name("jinja2.json")
    version = json.dumps(jinja2.__version__)
    out.write_text(f'{{"jinja2": {version}, "context": {context},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(len(rows), "rows")


main()
