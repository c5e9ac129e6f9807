"""Runs chat templates: Jinja, configured as in Hugging Face's tokenizers, in a sandbox with limits.

A template comes from a model's file and is untrusted. It can access only its variables, and the number of its steps, its time and
the size of its texts are limited. https://huggingface.co/docs/transformers/chat_templating_writing describes what templates may
use.

A prompt is not HTML, so text is never escaped, even if a template requests it. Each rendering uses a copy of its variables:
a template may modify lists and dictionaries, as in llama.cpp, without changing the caller's data.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, meta, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, modifies_known_mutable
from jinja2.visitor import NodeTransformer

from weft.chat.template_terms import MAX_SIZE, TooLongError

MAX_STEPS = 500_000
"""Maximum loop iterations in one rendering, which take less than a second. A long chat needs a few thousand."""

MAX_WORK_S = 2.0
"""Maximum CPU time of one rendering, in seconds: a single step may copy a long text."""

CALL_STEPS = 8
"""Cost of a macro call, and of a method that changes a list or a dictionary, in steps."""

MAX_PADDING = 10_000
"""Maximum width of a formatted field, in characters."""

MAX_VALUES = 200_000
"""Maximum nested values of a value that is converted to text, some 20 ms of work. Repeated values count each time."""

_BUDGET = "weft budget"
"""Variable that contains the budget. Templates cannot access a name with a space."""

_STEP = "weft_step"
_JOIN = "weft_join"


class WatchedList(list[object]):
    """A list among a template's variables that records whether the template reads its elements."""

    is_read = False

    def __iter__(self) -> Iterator[object]:
        """Iterates over the elements."""
        self.is_read = True
        return super().__iter__()


class _Budget:
    """Remaining steps and CPU time of one rendering."""

    def __init__(self) -> None:
        self._n_left = MAX_STEPS
        self._ends_at = time.thread_time() + MAX_WORK_S

    def spend(self, n_steps: int) -> None:
        self._n_left -= n_steps
        if time.thread_time() > self._ends_at:
            raise SecurityError(f"the template exceeded {MAX_WORK_S:g} s of CPU time")
        if self._n_left < 0:
            raise SecurityError(f"the template exceeded {MAX_STEPS} steps")


@jinja2.pass_context
def _step(context: Context, n_steps: int) -> bool:
    """Filter that counts steps and returns True."""
    context.resolve(_BUDGET).spend(n_steps)
    return True


def _join(texts: list[object]) -> str:
    """Implements `~` with a size limit."""
    parts = [str(_check_n_values(text)) for text in texts]
    _check_size(sum(map(len, parts)))
    return "".join(parts)


def _check_n_values(value: Any) -> Any:  # noqa: ANN401 (any value)
    """Returns a value that will be converted to text, unless it contains too many values.

    A short list that contains another list twice, which contains a third one twice, and so on, has exponentially many values.
    """
    if isinstance(value, str):
        return value
    pending, n_values = [value], 0
    while pending:
        item = pending.pop()
        n_values += 1
        # Iterating over a `WatchedList` in another way marks it as read.
        within = list.__iter__(item) if isinstance(item, list) else item if isinstance(item, tuple | set | frozenset) else ()
        pending.extend((*item, *item.values()) if isinstance(item, dict) else within)
        if n_values + len(pending) > MAX_VALUES:
            raise SecurityError(f"the template converts a value with more than {MAX_VALUES} elements to text")
    return value


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"the template creates a value of {size} elements; at most {MAX_SIZE} are allowed")


class _Limits(NodeTransformer):
    """Adds code to a template that counts steps and limits the results of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja's own names)
        if node.test is not None:
            # Elements that the test skips are iterations too.
            node.test = nodes.And(_steps(1, node), node.test, lineno=node.lineno)
        return self._counted(node, 1)

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._counted(node, CALL_STEPS)

    visit_CallBlock = visit_Macro  # noqa: N815

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock, n_steps: int) -> nodes.Node:
        node.body.insert(0, nodes.ExprStmt(_steps(n_steps, node), lineno=node.lineno))
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        texts = nodes.List(node.nodes, lineno=node.lineno)
        return self.generic_visit(nodes.Filter(texts, _JOIN, [], [], None, None, lineno=node.lineno))


def _steps(n_steps: int, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(nodes.Const(n_steps), _STEP, [], [], None, None, lineno=node.lineno)


class _CountingGenerator(CodeGenerator):
    """Compiles a template with limits."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:  # noqa: ANN401, N802
        super().visit_Template(_Limits().visit(node), frame)

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier, frame: Any) -> None:  # noqa: ANN401, N802
        """Compiles the body of `{% autoescape %}`, which has no effect."""
        for child in node.body:
            self.visit(child, frame)


class _Generation(Extension):
    """Renders the body of `{% generation %}`, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _LenientUndefined(jinja2.ChainableUndefined):
    """Undefined value whose attributes are undefined, and which is an empty text in `+`, as in llama.cpp.

    Templates read the descriptions and types of tools, which clients may omit.
    """

    def _added(self, other: object) -> object:
        return other if isinstance(other, str) else self._fail_with_undefined_error()

    __add__ = __radd__ = _added  # type: ignore[assignment]


class _Environment(SandboxedEnvironment):
    """Sandbox with limits on the results of expressions."""

    code_generator_class = _CountingGenerator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 (any value)
        """Evaluates a binary operator, unless the result would exceed a limit."""
        match operator:
            case "+" if hasattr(left, "__len__") and hasattr(right, "__len__"):
                _check_size(len(left) + len(right))
            case "*":
                _check_product(left, right)
                _check_product(right, left)
            case "**" if abs(right) > 64 or abs(left) > 2**32:
                raise SecurityError(f"{left} ** {right} is too large for a template")
            case "%" if isinstance(left, str):
                _check_padding(left)
                _check_n_values(right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (any callable)
        """Calls a function, unless its result would exceed a limit."""
        owner = getattr(function, "__self__", None)
        if owner is not None and modifies_known_mutable(owner, getattr(function, "__name__", "")):
            args = _count_growth(context, owner, args)
        elif isinstance(owner, str):
            if function.__name__ == "join" and args:
                args = (_check_parts(owner, args[0]), *args[1:])
            if function.__name__ in _PADDING_METHODS and any(isinstance(arg, int) and arg > MAX_PADDING for arg in args):
                raise SecurityError(f"the template pads a string to more than {MAX_PADDING} characters")
            if function.__name__ == "replace" and args:
                _check_size((owner.count(str(args[0])) + 1) * len(str(args[-1])))
        return super().call(context, function, *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:  # noqa: ANN401 (any object)
        """Returns a value that raises an error on any use, for an attribute that no template may read."""
        message = f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
        return jinja2.StrictUndefined(message, name=attribute, obj=obj, exc=SecurityError)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401 (any attribute)
        """Returns a replacement for `str.format`, after checking its format string."""
        safe = super().wrap_str_format(value)
        if safe is not None:
            _check_padding(value.__self__)
        return safe


# For `%` and `format`: a width or precision of six digits, or one given by an argument.
_WIDE = re.compile(r"%[-+ #0-9.]*(?:\*|[0-9]{6})|\{[^{}]*:[^{}]*(?:\{|[0-9]{6})")

_PADDING_METHODS = ("center", "expandtabs", "ljust", "rjust", "zfill")


def _count_growth(context: Context, owner: Sized, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Counts the elements that a method adds to a list or dictionary as steps, and returns its arguments."""
    # The length of an iterator is unknown until it is consumed.
    args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
    # `append` and `insert` add a text as one element, `extend` adds its characters. All count as characters here.
    n_added = max([len(arg) for arg in args if isinstance(arg, Sized)], default=0)
    _check_size(len(owner) + n_added)
    context.resolve(_BUDGET).spend(CALL_STEPS + n_added)
    return args


def _check_parts(separator: str, parts: Iterable[Any]) -> list[Any]:
    """Returns the parts of a text to join, unless the text would exceed the size limit."""
    parts = list(parts)
    _check_size(len(separator) * len(parts) + sum(len(part) for part in parts if isinstance(part, str)))
    return parts


def _check_product(sequence: object, count: object) -> None:
    if isinstance(sequence, str | list | tuple) and isinstance(count, int):
        _check_size(len(sequence) * count)


def _check_padding(form: str) -> None:
    if _WIDE.search(form):
        raise SecurityError(f"the template formats a string to more than {MAX_PADDING} characters")


def _limit_numbers(make: Callable[..., Any]) -> Callable[..., Any]:
    """Limits the numeric arguments of a filter, which are widths or counts."""

    def filter_(value: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (any value)
        if any(isinstance(number, int) and number > MAX_PADDING for number in (*args, *kwargs.values())):
            raise SecurityError(f"the template calls a filter with a number above {MAX_PADDING}")
        return make(value, *args, **kwargs)

    return filter_


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Filter `tojson` without HTML escaping. An iterator, such as the result of `map`, becomes a list."""
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(_check_n_values(value), default=_iterator_as_list, **options)


def _iterator_as_list(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _to_text(value: object, *_: object, **__: object) -> str:
    """Converts a value to text: the result of `safe`, `escape` and `urlize`."""
    return str(_check_n_values(value))


@jinja2.pass_environment
def _join_filter(
    environment: jinja2.Environment, value: Iterable[Any], separator: object = "", attribute: str | int | None = None
) -> str:
    """Filter `join` with a size limit."""
    values = value if attribute is None else map(filters.make_attrgetter(environment, attribute), value)
    texts = (str(_check_n_values(part)) for part in values)
    return str(separator).join(_check_parts(str(separator), texts))


def _replace(value: object, old: object, new: object, count: int = -1) -> str:
    """Filter `replace` with a size limit."""
    text = str(_check_n_values(value))
    _check_size((text.count(str(old)) + 1) * len(str(new)))
    return text.replace(str(old), str(new), count)


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Filter `indent` with a size limit."""
    text = str(_check_n_values(value))
    n_added = len(width) if isinstance(width, str) else width
    _check_size(len(text) + (text.count("\n") + 1) * n_added)
    return filters.do_indent(text, width, first, blank)


def _format(value: object, *args: object, **kwargs: object) -> str:
    """Filter `format` with a limit on widths."""
    form = str(_check_n_values(value))
    _check_padding(form)
    return str(form % _check_n_values(kwargs or args))


def _attributes(values: Mapping[str, object], autospace: bool = True) -> str:
    """Filter `xmlattr` without escaping."""
    shown = " ".join(f'{name}="{value}"' for name, value in values.items() if not isinstance(value, jinja2.Undefined | None))
    return f" {shown}" if autospace and shown else shown


def _make_environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=_LenientUndefined,
        finalize=_check_n_values,
        extensions=[_Generation, loopcontrols],
    )
    environment.filters |= {"tojson": _tojson, _STEP: _step, _JOIN: _join}
    environment.filters |= dict.fromkeys(("safe", "escape", "e", "forceescape", "urlize"), _to_text)
    environment.filters |= {"join": _join_filter, "replace": _replace, "format": _format, "xmlattr": _attributes}
    environment.filters |= {name: _limit_numbers(environment.filters[name]) for name in ("center", "slice", "batch")}
    environment.filters["string"] = _to_text
    environment.filters["indent"] = _indent
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    # `lipsum` creates text of any length, and the work of the filters grows faster than the text. Chats need neither.
    del environment.globals["lipsum"]
    for name in ("pprint", "wordwrap"):
        del environment.filters[name]
    return environment


_environment = _make_environment()


def compile_template(source: str) -> jinja2.Template:
    """Compiles a template.

    Raises:
        jinja2.TemplateSyntaxError: The source is invalid; `lineno` is the line.
    """
    return _environment.from_string(source)


def variables_of(source: str) -> set[str]:
    """Returns the names of the variables that a template reads but does not set. The source must be valid."""
    return meta.find_undeclared_variables(_environment.parse(source))


def render(template: jinja2.Template, variables: Mapping[str, object], max_size: int = MAX_SIZE) -> str:
    """Renders a template. Exceptions of the template propagate.

    The template receives a copy of the variables, whose lists and dictionaries it may modify.

    Raises:
        TooLongError: The text exceeds `max_size` characters. Rendering stops there.
    """
    parts = []
    size = 0
    for part in template.generate({**_deep_copy(variables), _BUDGET: _Budget()}):
        size += len(part)
        _check_size(size)
        if size > max_size:
            raise TooLongError(size)
        parts.append(part)
    return "".join(parts)


def _deep_copy(value: Any) -> Any:  # noqa: ANN401 (any JSON)
    """Returns a deep copy of a JSON value."""
    if isinstance(value, WatchedList):
        return value
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list | tuple) else value
