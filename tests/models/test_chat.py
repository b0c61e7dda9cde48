"""Chat templates: what the well-behaved ones need, and what the others can't do."""

import resource
import sys
import time
from datetime import datetime

import pytest

from headway.errors import InvalidRequestError, ModelError
from headway.models.chat import ChatTemplate, TemplateLimits

_HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi! "}]


def _render(source: str) -> str:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(source, tokens).render(_HELLO)


_USEFUL = {
    "{{ bos_token }}{{ messages[1]['content'] | trim }}{{ eos_token }}": "<s>Hi!</s>",
    "{% for m in messages %}{{ m.role[0] ~ loop.index0 ~ loop.last }} {% endfor %}": (
        "s0False u1True "
    ),
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{% break %}{% endfor %}": " Hi! ",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}": "2",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "1",
    "{{ messages | map(attribute='role') | join(', ') }}": "system, user",
    "{% for m in messages[1:] %}{{ m['content'].strip().split('!')[0] }}{% endfor %}": "Hi",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}": "usersystem",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}": (
        "role=system;content=Be brief.;"
    ),
    "{{ messages[0] | tojson }}": '{"role": "system", "content": "Be brief."}',
    "{{ {'a': [1, 'é<']} | tojson(indent=2) }}": '{\n  "a": [\n    1,\n    "é<"\n  ]\n}',
    "{{ 'a\nb' | indent(2) }}": "a\n  b",
    "{% if tools is none and documents is not defined %}no{% else %}yes{% endif %}": "yes",
    "{% if tools %}{% elif messages is iterable and messages is not string %}list{% endif %}": (
        "list"
    ),
    "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}{{ f(2 * 3) }}": "<a><6>",
    "{%- generation -%} x {%- endgeneration -%}": "x",
    "  {%- if true -%}  a  {%- endif -%}  ": "a",
    "{{ '%s-%d' % ('a', 7) }}{{ [1] + [2] }}{{ 'x' * 3 }}": "a-7[1, 2]xxx",
    "{{ 'user' in ('user', 'tool') }}{{ 'i' not in 'Hi' }}{{ 3 is divisibleby 3 }}": (
        "TrueFalseTrue"
    ),
    "{{ add_generation_prompt }}{{ undefined_one }}": "True",
    "{{ strftime_now('%d %b %Y') }}": "03 Feb 2025",
    "{{ messages[1].content | replace('H', 'h') | upper }}": " HI! ",
    "{{ extra }}": "more",
}


@pytest.mark.parametrize(("source", "text"), list(_USEFUL.items()))
def test_what_templates_use(source: str, text: str) -> None:
    template = ChatTemplate(
        source, {"bos_token": "<s>", "eos_token": "</s>"}, now=lambda: datetime(2025, 2, 3)
    )
    assert template.render(_HELLO, extra="more") == text


def test_variables_of_any_name() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ x }}", {})
    names = ("self", "source", "context", "loop", "budget", "add_generation_prompt ", "")
    assert template.render(_HELLO, True, **dict.fromkeys(names, 1), x="!") == "Be brief.!"


_ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}{{ messages.__init__ }}",
    "{{ raise_exception.__globals__['re'] }}",
    "{{ strftime_now.__self__._now }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ namespace.__init__.__globals__['os'] }}",
    "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
    "{{ ('' | attr('__class__')).mro() }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% for i in (1).__class__.__mro__ %}{{ i }}{% endfor %}{{ 1 / 0 }}",
    "{{ lipsum.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.environment.loader.x }}",
    "{{ range.__class__.__base__ }}{{ range(9) }}",
    "{{ messages | tojson(default=lipsum) }}",
)


@pytest.mark.parametrize("source", _ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        _render(source)
    assert "\n" not in str(error.value)


_DOUBLING = (
    "{% set ns = namespace(s=START) %}{% for i in range(70) %}{% set ns.s = STEP %}{% endfor %}"
)


def _doubling(start: str, step: str) -> str:
    return _DOUBLING.replace("START", start).replace("STEP", step)


_ENDLESS = {
    "nested loops": "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2,
    "text in a loop": "{% for i in range(99999) %}" + "x" * 50_000 + "{% endfor %}",
    "range": "{{ range(10 ** 7) | list }}",
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat a list": "{{ [1] * 10 ** 10 }}",
    "double by ~": _doubling("'ab'", "ns.s ~ ns.s"),
    "double by +": _doubling("'ab'", "ns.s + ns.s"),
    "double by nesting": _doubling("[1]", "[ns.s, ns.s]") + "{{ ns.s }}",
    "double dictionaries": _doubling("{}", "{'a': ns.s, 'b': ns.s}") + "{{ ns.s | tojson }}",
    "double tuples": _doubling("(1,)", "(ns.s, ns.s)") + "{{ {ns.s: 1} }}",
    "double captured text": "{% set x %}aaaa{% endset %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 50,
    "power": "{{ 2 ** (10 ** 10) }}",
    "numbers": _doubling("3", "ns.s * ns.s") + "{{ ns.s }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless loop": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "format width": "{{ '%9999999999d' % 1 }}",
    "format star": "{{ '%*d' % (10 ** 10, 1) }}",
    "str.format": "{{ '{:>9999999999}'.format(1) }}",
    "ljust": "{{ 'a'.ljust(10 ** 10) }}",
    "replace": "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) }}",
    "replace filter": "{{ ('a' * 10 ** 6) | replace('', 'b' * 10 ** 6) }}",
    "join": "{{ ('a' * 10 ** 6).join('b' * 10 ** 6) }}",
    "join filter": "{{ ('b' * 10 ** 6) | join('a' * 10 ** 6) }}",
    "indent": "{{ ('\\n' * 10 ** 6) | indent(10 ** 9) }}",
    "tojson indent": "{{ [[[1]]] | tojson(indent=10 ** 9) }}",
    "containment": "{% for i in range(99999) %}{{ 'b' in ('a' * 10 ** 6) }}{% endfor %}",
    "comparison": _doubling("[1]", "[ns.s, ns.s]") + "{{ ns.s == [ns.s] }}",
    "tests": "{% for i in range(99999) %}{{ 'b' is in(messages * 1000) }}{% endfor %}",
    "namespace in itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
    "filtered loop": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "text in a macro": "{% macro f() %}" + "x" * 99_999 + "{% endmacro %}"
    "{% for i in range(9999) %}{{ f() }}{% endfor %}",
    "text in a block": "{% set n = namespace(n=1000) %}{% block b %}"
    + "x" * 99_999
    + "{% endblock %}"
    "{% for i in range(9999) %}{{ self.b() }}{% endfor %}",
    "round": "{{ 5 | round(-10 ** 9) }}",
    "round up": "{{ 5 | round(10 ** 9, 'ceil') }}",
    "long numbers": "{% set n = ('1' * 10 ** 6) | int(base=2) %}{{ n // 3 % 7 }}",
    "sum of lists": "{{ ([[1]] * 10 ** 5) | sum(start=[]) }}",
    "strip": "{{ ('a' * 10 ** 6).strip('b' * 10 ** 6) }}",
    "trim": "{{ ('a' * 10 ** 6) | trim('b' * 10 ** 6) }}",
    "search backwards": "{{ ('a' * 10 ** 6).rfind('b' + 'a' * 10 ** 5) }}",
    "split": "{{ ('a ' * 10 ** 6).split() }}",
    "list of characters": "{{ ('a' * 10 ** 6) | list }}",
    "slices": "{% set s = 'a' * 10 ** 6 %}" + "{% set x = s[1:] %}" * 99,
    "changed": "{% set x = [1] * 50000 %}{% for i in range(9999) %}{{ loop.changed(x + [i]) }}"
    "{% endfor %}",
    "strftime": "{{ strftime_now('%c' * 10 ** 9) }}",
}


@pytest.mark.parametrize("source", _ENDLESS.values(), ids=_ENDLESS.keys())
def test_there_is_no_running_on(source: str) -> None:
    """Each would take minutes or gigabytes; each ends in seconds and 300 MB, with one line."""
    template = ChatTemplate(source, {})
    start, peak = time.thread_time(), _peak_bytes()
    with pytest.raises(InvalidRequestError) as error:
        template.render(_HELLO)
    assert time.thread_time() - start < 5
    assert _peak_bytes() - peak < 300 << 20
    assert "\n" not in str(error.value)


def _peak_bytes() -> int:
    """The most memory this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_MALFORMED = (
    "{% for %}",
    "{{ x | center(9) }}",
    "{{ x | no_such_filter }}",
    "{% debug %}",
    "x" * (1 << 18),
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "1 + " * 20_000 + "1 }}",
    "{{ x" + ".a" * 20_000 + " }}",
    "{% if x %}" * 3000,
)


@pytest.mark.parametrize("source", _MALFORMED, ids=[source[:16] for source in _MALFORMED])
def test_a_malformed_template_is_refused_at_load(source: str) -> None:
    with pytest.raises(ModelError, match="chat template") as error:
        ChatTemplate(source, {})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_refusal_is_the_caller_s_error() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    )
    with pytest.raises(InvalidRequestError, match="No system role") as error:
        _render(source)
    assert error.value.param == "messages"


def test_long_output_is_refused() -> None:
    template = ChatTemplate("{{ messages[0] }}", {}, TemplateLimits(output_chars=100))
    with pytest.raises(InvalidRequestError, match="too much"):
        template.render([{"role": "user", "content": "x" * 200}])


def test_a_long_conversation_is_within_the_limits() -> None:
    source = (
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('r')"
        " }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    )
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": "word " * 200} for i in range(4000)
    ]
    start = time.thread_time()
    text = ChatTemplate(source, {}).render(messages)
    assert text.count("<|im_start|>") == 4000
    assert time.thread_time() - start < 2


def test_messages_stay_as_they_are() -> None:
    before = [dict(message) for message in _HELLO]
    with pytest.raises(InvalidRequestError):
        _render("{{ messages[0].update({'role': 'x'}) }}")
    with pytest.raises(InvalidRequestError):
        _render("{{ messages.clear() }}")
    assert before == _HELLO


def test_user_text_is_never_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    text = "{{ 1 + 1 }}{% for %}"
    assert template.render([{"role": "user", "content": text}]) == text
