"""A Jinja environment for templates that nobody has read: no way into Python's internals, and a price on everything.

Jinja's own sandbox keeps a template from the attributes that lead out of it, but not from taking all memory or never
ending. Here every loop turn and every call is a step of the budget, and every value that is made (by an operator, a
call, a filter, a literal, a block) costs its size. What can grow faster than its arguments is priced before it is made,
or is not there: a filter that no chat template has a use for is unknown, as a misspelt one is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from cacheir.runtime.template_budget import Budget, TemplateTooCostly

MAX_INTEGER_BITS = 256
MAX_INDENT = 64

_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby indent int items join last length list lower "
    "map max min reject rejectattr replace reverse round safe select selectattr sort string sum title trim truncate "
    "unique upper"
).split()
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
        "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
        "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
    ),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("get", "items", "keys", "values")),
    int: frozenset(),
    float: frozenset(),
}
# A width or precision in a format text: a few digits are layout, more are an attack; a star takes it from the data.
_WIDE_FORMAT = re.compile(r"[0-9]{4}|\*|\{[^{}]*\{")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment: it holds the budget, so two renderings share nothing that changes."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, budget: Budget) -> None:
        # Nothing is folded while the template is compiled: then no budget is there.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_GenerationBlock, loopcontrols]
        )
        self._budget = budget
        self.filters = {name: self._priced(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = self._priced("tojson", _tojson)
        self.globals = {
            **{name: self.globals[name] for name in ("range", "cycler", "joiner")},
            "dict": _make_dict,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.concat = self.joined  # type: ignore[method-assign]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only the methods in ``_METHODS`` of Python's own types; none of numbers (``(1).to_bytes(10**9)``)."""
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        return attr in allowed if allowed is not None else super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call in the template: a step, and the size of its result."""
        __self._budget.step()
        text = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(text, str):
            args = __self._price_method(text, __obj.__name__, args, kwargs)
        return __self._budget.value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``left operator right``, priced before where it can multiply."""
        if operator == "%" and isinstance(left, str):
            self._price_format(left, left.count("%"), right)
        elif operator in ("*", "**"):
            self._price_product(operator, left, right)
        return self._budget.value(super().call_binop(context, operator, left, right))

    def turns(self, iterable: Iterable[Any]) -> _Turns:
        """What a ``for`` runs over: each turn is a step."""
        return _Turns(iterable, self._budget)

    def made(self, value: Any) -> Any:
        """``value``, a literal of the template, with its size paid."""
        return self._budget.value(value)

    def joined(self, parts: Iterable[Any]) -> str:
        """The parts as one string: a rendering, a block, a macro's result, an ``a ~ b``."""
        texts = []
        for part in parts:
            text = part if type(part) is str else str(part)
            self._budget.size(len(text) + 1)
            texts.append(text)
        return "".join(texts)

    def _priced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, a filter, as a step with a price. Jinja's marks on what it is passed first stay on it."""
        price = _FILTER_PRICES.get(name)

        @wraps(function)
        def priced(*args: Any, **kwargs: Any) -> Any:
            self._budget.step()
            # What another filter left unfinished is made here, so that it can be measured.
            args = tuple(self.made(list(arg)) if isinstance(arg, Iterator) else arg for arg in args)
            if price is not None:
                price(self._budget, *args, **kwargs)
            return self._budget.value(function(*args, **kwargs))

        return priced

    def _price_method(self, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if name == "format":
            self._price_format(text, text.count("{"), (args, dict(kwargs)))
        elif name == "replace" and len(args) >= 2:
            self._budget.size(text.count(str(args[0])) * len(str(args[1])))
        elif name == "join" and args:
            args = (list(args[0]),)  # a generator can be measured only once it has run
            _price_join(self._budget, None, args[0], text)
        return args

    def _price_format(self, text: str, fields: int, values: Any) -> None:
        if _WIDE_FORMAT.search(text):
            raise TemplateTooCostly(f"the format {text[:40]!r} has a width of more than three digits, or from the data")
        self._budget.repeated(values, fields)

    def _price_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise TemplateTooCostly(f"an integer would have more than {MAX_INTEGER_BITS} bits")
        elif operator == "*":
            times, repeated = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int) and isinstance(repeated, (str, list, tuple)):
                self._budget.repeated(repeated, max(0, times))


class _Turns:
    """An iterable of which each turn is a step; its length is known where the iterable's is."""

    def __init__(self, iterable: Iterable[Any], budget: Budget) -> None:
        self._iterable = iterable
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            self._budget.step()
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # Jinja counts by itself on a TypeError


class _Generator(CodeGenerator):
    """Writes the prices into the compiled template: around loops, literals and joins."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        for loop in node.find_all(nodes.For):
            turns = nodes.EnvironmentAttribute("turns", lineno=loop.lineno)
            loop.iter = nodes.Call(turns, [loop.iter], [], None, None, lineno=loop.lineno)
        super().visit_Template(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        literal = node.ctx == "load"  # the others are targets of an assignment
        self.write("environment.made(" if literal else "")
        super().visit_Tuple(node, frame)
        self.write(")" if literal else "")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


TemplateSandbox.code_generator_class = _Generator


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}``, which marks a model's own words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own spelling

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Jinja's namespace without private attributes, which the sandbox could never read again anyway."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _check_public(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}: names with an underscore in front are private")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _price_replace(budget: Budget, _context: Any, text: Any, old: Any, new: Any, count: Any = None) -> None:
    budget.size(str(text).count(str(old)) * len(str(new)))


def _price_join(budget: Budget, _context: Any, items: Iterable[Any], d: Any = "", attribute: Any = None) -> None:
    for item in items:
        budget.size(len(str(d)) + (len(item) if isinstance(item, str) else len(str(item))))


def _price_indent(budget: Budget, text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> None:
    _check_indent(width)
    budget.size((str(text).count("\n") + 1) * MAX_INDENT)


def _price_tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    _check_indent(indent)
    for separator in separators or ():
        _check_indent(separator)


def _price_round(budget: Budget, value: Any, precision: Any = 0, method: str = "common") -> None:
    if not isinstance(precision, int) or abs(precision) > 15:
        raise TemplateTooCostly("a number is rounded to more than 15 places")


def _check_indent(indent: Any) -> None:
    width = len(indent) if isinstance(indent, str) else indent
    if isinstance(width, int) and width > MAX_INDENT:
        raise TemplateTooCostly(f"an indent or separator is wider than {MAX_INDENT}")


# Filters whose result can be much larger than what they are given.
_FILTER_PRICES: Mapping[str, Callable[..., None]] = {
    "replace": _price_replace,
    "join": _price_join,
    "indent": _price_indent,
    "tojson": _price_tojson,
    "round": _price_round,
}
