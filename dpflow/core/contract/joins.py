"""What a declaration joins to each row: other private relations, and dimensions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpflow.core.contract.strict_models import Strict


def plain_relation(relation: str) -> str:
    """One relation's name, however it is written."""
    return relation.casefold().removeprefix("main.")


class Join(Strict):
    """A second relation of the same file, joined to every row before contributions are bounded. Its
    columns are ``name.column``. Rows without a match stay, with NULLs.

    Rules, each named by its refusal: ``unit-key`` (private tables join on the unit and on nothing
    else, and a relation has one unit column wherever it is named), ``multiplicity`` (they declare
    ``rows``), ``unique-key`` (a dimension has one row a key, hence no ``rows``), ``public-rows`` (a
    dimension is no private relation of this or another declared table, nor a view that reads what
    this one's read), ``whole-unit`` (no private table beside budgets per block, which it would cross).

    Attributes:
        relation: the relation's name in the same file; of a server's source a folder or catalogue's table,
            or the name of what lies beside the table's.
        name: what its columns are called by: ``name.column``.
        kind: ``unit`` is another private table, joined on the privacy unit: its rows of a unit are
            protected with that unit. ``dimension`` is a table that the owner declares public, joined
            on a key; a key that it holds twice matches nothing.
        on: maps the table's column to the relation's.
        rows: of a private relation, how many rows of a unit are joined, chosen at random.
        public: of a dimension, that everybody may see its rows, where a view hides whose they are.
            The owner answers for it: nothing is looked through then.
    """

    example = "{relation: towns, name: town, kind: dimension, on: {city: name}}"

    relation: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    kind: Literal["unit", "dimension"]
    on: Annotated[dict[str, str], Field(min_length=1, max_length=1)]
    rows: Annotated[int, Field(ge=1, le=1000)] | None = None
    public: bool = False

    @model_validator(mode="before")
    @classmethod
    def _read_on(cls, given: Any) -> Any:
        """YAML 1.1 takes the bare word ``on`` for true."""
        if isinstance(given, dict) and True in given:
            # Only this key can be a truth value: names of relations are texts.
            return {"on" if name is True else name: value for name, value in given.items()}
        return given

    @property
    def left_column(self) -> str:
        """The key's column in the table."""
        return next(iter(self.on))

    @property
    def right_column(self) -> str:
        """The key's column in the joined relation."""
        return self.on[self.left_column]
