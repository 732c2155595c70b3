"""`ServerSource`: where a declaration says that a server reads its rows, in place of a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from dpflow.core.contract.strict_models import Strict, describe_problems


class ServerSource(Strict):
    """Base of the sources that query backends read. A subclass is a kind of source: a declaration means
    it by the field that is called like its backend.

    Class attributes:
        backend: the name of the query backend that reads it.
        system: the name of the program, as people write it.
    """

    backend: ClassVar[str]
    system: ClassVar[str]
    kinds: ClassVar[dict[str, type[ServerSource]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        ServerSource.kinds[cls.backend] = cls

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """The base stands for any of its kinds."""
        if cls is not ServerSource:
            return handler(core_schema)
        kinds = [handler(kind.__pydantic_core_schema__) for kind in cls.kinds.values()]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}

    @property
    @abstractmethod
    def place(self) -> str:
        """One text for the spellings of one place."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Where the rows are, for people; no credentials."""

    @property
    @abstractmethod
    def trust_text(self) -> str:
        """What the owner trusts beside the backend, as in "trusting a server of ...": part of what a budget
        protects. Empty where the backend answers for all that it reads.
        """

    @abstractmethod
    def in_folder(self, folder: str) -> ServerSource:
        """The same rows by the folder that a catalogue says they are in."""

    def resolve_files(self, folder: Path) -> ServerSource:
        """The same source, whose own files are relative to the declaration's folder."""
        return self

    @abstractmethod
    def find_relation(self, relation: str) -> ServerSource:
        """The source of what a join names. Raises `ValueError` for a text that names none."""


def find_kind(value: Any) -> type[ServerSource] | None:
    """The kind of a source, as it is or as fields; None where these name none, or several."""
    if isinstance(value, ServerSource):
        return type(value)
    fields = value if isinstance(value, Mapping) else {}
    named = [kind for name, kind in ServerSource.kinds.items() if name in fields]
    return named[0] if len(named) == 1 else None


def read_source(value: Any) -> Any:
    """A source from its fields. Raises `ValueError`."""
    if value is None or isinstance(value, ServerSource):
        return value
    kind = find_kind(value)
    if kind is None:
        examples = [kind.example for kind in ServerSource.kinds.values()]
        raise ValueError(f"must be a mapping, such as {' or '.join(examples)}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(describe_problems(error)) from None
