"""Models of what people write - declarations, requests, parameters - and what is wrong with it, in a sentence."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from dpflow.core.accounting import amounts
from dpflow.errors import InvalidAmount, InvalidDeclaration, InvalidInput, UnknownName

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?", re.ASCII)


class TakesParams:
    """A generic class whose model of parameters, ``Params``, is its first type argument, unless it names
    another one: ``class Count(Mechanism[CountParams])``.
    """

    Params: ClassVar[type[BaseModel]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the type argument that the class gives its base."""
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            model, *_ = get_args(base) or (None,)
            is_model = isinstance(model, type) and issubclass(model, BaseModel)
            if is_model and "Params" not in vars(cls):
                cls.Params = model


def check_flag(name: str, value: Any) -> None:
    """Raises `InvalidInput` unless an argument that loosens a rule is True or False itself: a text such as "no" is true."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is a {type(value).__name__}; write True or False")


def read_quoted_date(value: Any) -> Any:
    """A text that is an ISO date or time as one, as YAML reads it without quotes; anything else as it
    is. Raises ValueError for a date that is none, such as 2024-02-30.
    """
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        return value
    try:
        return (
            dt.date.fromisoformat(value) if len(value) == 10 else dt.datetime.fromisoformat(value)
        )
    except ValueError:
        raise ValueError(f"there is no date {value[:40]!r}") from None


def parse_exact(value: Any) -> Fraction:
    """A bound as an exact rational: ints, strings like "0.1", dates (days since 1970-01-01), quoted or
    not; floats by shortest form.
    """
    value = read_quoted_date(value)
    # A date, too: days with a fraction, UTC where no zone is given.
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=value.tzinfo or dt.UTC) - dt.datetime(
            1970, 1, 1, tzinfo=dt.UTC
        )
        return Fraction(since // dt.timedelta(microseconds=1), 86_400_000_000)
    if isinstance(value, dt.date):
        return Fraction((value - dt.date(1970, 1, 1)).days)
    try:
        number = amounts.parse_exact("a number", value)
        # A claim or an option becomes a double in the end, when it is too late to refuse it.
        float(number)
    except (InvalidAmount, OverflowError):
        raise ValueError("write a finite number, such as -60 or '0.25'") from None
    return number


Exact = Annotated[Fraction, BeforeValidator(parse_exact), PlainSerializer(str, return_type=str)]


class Strict(BaseModel):
    """Base of every model a person writes: unknown fields are errors that list close ones, values
    are frozen.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, defer_build=True
    )
    #: How a person writes one, for messages.
    example: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        unknown = (
            [str(name) for name in data if name not in cls.model_fields]
            if isinstance(data, dict)
            else []
        )
        if len(unknown) > 2:
            raise ValueError(
                f"there are no fields {', '.join(unknown[:20])}; known: {', '.join(cls.model_fields)}"
            )
        if unknown:
            raise ValueError("; ".join(map(cls._describe_unknown, unknown)))
        return data

    @classmethod
    def _describe_unknown(cls, name: str) -> str:
        return str(UnknownName("field", name, cls.model_fields)).rstrip(".")


#: What a value must be, where pydantic's own text speaks of Python.
_EXPECTED = {
    "bool": "must be true or false",
    "dict": "must be a mapping, such as {name: value}",
    "float": "must be a number, such as 0.5",
    "int": "must be a whole number, such as 3",
    "list": "write a list, such as [1, 2]",
    "missing": "is missing; add it",
    "path": "must be a path, such as visits.duckdb",
    "tuple": "write a list, such as [1, 2]",
}


def describe_problems(error: ValidationError) -> str:
    """Pydantic's findings in one line: each with its field, what it must be and an example.

    Names fields, never quotes more than their names.
    """
    texts = []
    for item in error.errors(include_url=False):
        field = ".".join(map(str, item["loc"]))
        texts.append(f"{field}{': ' if field else ''}{_describe_problem(item)}")
    return "; ".join(texts)


def require_values(data: Mapping[str, Any], what: str, may_be_empty: Collection[str] = ()) -> None:
    """Refuse fields that are written and say nothing, such as ``where: null``: each has a meaning when
    it is left out, mostly more rows. Elements of lists are values of columns, and may be empty.

    Args:
        what: what the data should be, for the message.
        may_be_empty: names of fields at the top for which nothing is a value.

    Raises:
        InvalidDeclaration: the message names the first of them.
    """
    for name, value in _list_empty_fields(data, ""):
        if name not in may_be_empty:
            raise InvalidDeclaration(
                f"{what}: {name} is {value!r:.40}, which says nothing; write a value, or leave {name} out"
            )


def _list_empty_fields(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Fields at any depth whose value is None, blank or empty, each by its path."""
    if isinstance(value, list | tuple):
        for element in value:
            if isinstance(element, Mapping):
                yield from _list_empty_fields(element, place)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            path = f"{place}.{name}" if place else str(name)
            if _says_nothing(inner):
                yield path, inner
            else:
                yield from _list_empty_fields(inner, path)


def _says_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    is_collection = isinstance(value, Collection) and not isinstance(value, bytes)
    return value is None or (is_collection and not value)


def leave_out_empty(value: Any) -> Any:
    """JSON without the fields that `require_values` refuses."""
    if isinstance(value, Mapping):
        fields = {name: leave_out_empty(inner) for name, inner in value.items()}
        return {name: inner for name, inner in fields.items() if not _says_nothing(inner)}
    if isinstance(value, list | tuple):
        return [leave_out_empty(one) if isinstance(one, Mapping) else one for one in value]
    return value


def _describe_problem(item: ErrorDetails) -> str:
    """What one value must be."""
    kind, *_ = item["type"].partition("_")
    if item["type"] == "string_type":
        if isinstance(item["input"], bool):
            return "must be a text, and YAML reads no, yes, on and off as truth values; put it in quotes, such as 'no'"
        if isinstance(item["input"], dict | list):
            return "must be a text, such as city"
        return "must be a text; put it in quotes, such as '1'"
    if kind == "model":
        example = _find_example(item.get("ctx", {}).get("class_name", ""), Strict)
        return f"must be a mapping, such as {example or '{name: value}'}"
    if item["type"].startswith("union_tag"):
        return f"must be a mapping with a legal {item['ctx']['discriminator']}; {item['msg']}"
    if kind in _EXPECTED and not item["type"].endswith(("short", "long")):
        return _EXPECTED[kind]
    text = item["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return re.sub(r"^(Input|String|Tuple|List|Dictionary) should ", "must ", text)


def _find_example(name: str, model: type[Strict]) -> str:
    """The example of the model with this name, or what its fields are."""
    if model.__name__ == name:
        return model.example or f"{{{', '.join(f'{field}: ...' for field in model.model_fields)}}}"
    return next(filter(None, (_find_example(name, part) for part in model.__subclasses__())), "")
