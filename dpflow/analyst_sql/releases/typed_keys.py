"""The types of groups' keys, so that they are ordered and compared as the source's column is.

A key's text may write a number, a date or a truth value where the column holds texts. So a type is that of
the source's catalogue, never what the released texts look like. It is kept with the release, so a stored answer needs no
source. Keys of an ENUM are texts, also in their order: its values may be data, and are not looked up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal

from dpflow.analyst_sql.parse.select_query import SelectQuery
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, TableBusy
from dpflow.tables import column_types, declare_groups
from dpflow.tables.language.nodes import Node

_DAY = r"[0-9]{4,}-[0-9]{2}-[0-9]{2}( \(BC\))?"
#: What DuckDB writes for values of its types, infinite times and those beyond the years 1 to 9999 included.
_WRITTEN = {
    "BOOLEAN": re.compile("true|false"),
    "BIGINT": re.compile("-?[0-9]+"),
    "DOUBLE": re.compile(r"-?[0-9]+(\.[0-9]+)?"),
    "DATE": re.compile(f"-?infinity|{_DAY}"),
    "TIMESTAMP": re.compile(rf"-?infinity|{_DAY} [0-9:]{{8}}(\.[0-9]+)?(\+00)?"),
}
#: Least values of DuckDB's integers, and what is above all.
_INTEGERS = {
    "BIGINT": (-(2**63), 2**63),
    "HUGEINT": (-(2**127), 2**127),
    "UHUGEINT": (0, 2**128),
}


class KeyReader:
    """Finds the types of keys; a source's catalogue is asked once for each that no release has."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], str | None] = {}
        self._kept: dict[tuple[str, str], set[str]] = {}
        self._texts: dict[tuple[str, str], list[str]] = {}
        self._drawn: set[tuple[str, str]] = set()

    def recall(
        self, table: Table, types: Mapping[str, str], texts: Mapping[str, Sequence[str]]
    ) -> None:
        """Take the types that were kept with a stored release, as `list_kept` gave them, and its keys, by expression."""
        for text, kind in types.items():
            self._kept.setdefault((table.name, text), set()).add(kind)
        for text, keys in texts.items():
            self._texts.setdefault((table.name, text), []).extend(keys)

    def expect_draw(self, table: Table, expressions: Collection[str]) -> None:
        """Count expressions as ones whose keys will be drawn, of the types that the source has now."""
        self._drawn.update((table.name, text) for text in expressions)

    def list_kept(self, query: SelectQuery) -> dict[str, str]:
        """The types to keep with a release, by expression: those that sources were asked for."""
        values = (one.value for one in query.aggregates)
        texts = dict.fromkeys(map(str, filter(None, (*query.groups, *values))))
        types = {text: self._types.get((query.table.name, text)) for text in texts}
        return {text: kind for text, kind in types.items() if kind is not None}

    def find_kind(self, table: Table, group: Node) -> str:
        """DuckDB's type of a grouping expression's keys, as far as it is known before they are released: one that holds
        those of all stored releases and of what is drawn, so that they stand together; text where none does.
        """
        if is_text(group):
            return "VARCHAR"
        place, public = (table.name, str(group)), None
        if place in self._drawn or place not in self._kept:
            declared, name = declare_groups(table, str(group))
            public = declared.columns[name].public_keys
            if public is not None and all(map(_is_plain, public)):
                return "VARCHAR"
        kind = _join_kinds({_name_kind(one or "") for one in self._find_types(table, group)})
        # A key that no value of the type writes, which a declaration or an older release may have, makes all of them texts.
        return kind if _writes(kind, [*self._texts.get(place, ()), *(public or ())]) else "VARCHAR"

    def require_types(self, query: SelectQuery) -> None:
        """Ask for the types of what a query will release, before it is charged. Raises `TableBusy` as
        `find_released_kind` would of its keys.
        """
        modes = (one.value for one in query.aggregates if one.kind == "mode" and one.value)
        for node in (*query.groups, *modes):
            declared, name = declare_groups(query.table, str(node))
            self._require_type(query.table, node, declared.columns[name].public_keys or ("0",))

    def find_released_kind(self, table: Table, group: Node, texts: Sequence[str]) -> str:
        """The same of released keys.

        Raises:
            TableBusy: the catalogue cannot be asked, and they may be values of several types.
        """
        kind = self.find_kind(table, group)
        self._require_type(table, group, texts)
        return kind if _writes(kind, texts) else "VARCHAR"

    def _require_type(self, table: Table, group: Node, texts: Sequence[str]) -> None:
        is_open = not is_text(group) and not all(map(_is_plain, texts))
        if is_open and None in self._find_types(table, group):
            raise TableBusy(
                f"the catalogue of table {table.name!r} cannot be read now, and it says whether keys of {group} are texts, "
                f"numbers or times; ask again when its source is there: what is paid is stored, and costs nothing again"
            )

    def find_time_kind(self, table: Table, value: Node) -> str | None:
        """DATE or TIMESTAMP where sources say that a value is one, VARCHAR where only some do; None where it is none, or
        none can say.
        """
        names = {(kind or "").partition(" ")[0] for kind in self._find_types(table, value)}
        times = {name for name in names if name == "DATE" or name.startswith("TIMESTAMP")}
        if times and times != names:
            return "VARCHAR"
        return None if not times else "DATE" if times == {"DATE"} else "TIMESTAMP"

    def list_types(self) -> list[tuple[str, str | None]]:
        """The types that sources were asked for, each with its table's name; None where one could not say."""
        return [(name, kind) for (name, _), kind in self._types.items()]

    def _find_types(self, table: Table, group: Node) -> set[str | None]:
        """Types that were kept, and that of now where keys are drawn or none was kept; None if it cannot be asked."""
        place = table.name, str(group)
        kinds: set[str | None] = {*self._kept.get(place, ())}
        if kinds and place not in self._drawn:
            return kinds
        # What cannot be read now may be read later.
        if self._types.get(place) is None:
            self._types[place] = _find_type(table, group)
        return kinds | {self._types[place]}


def _find_type(table: Table, group: Node) -> str | None:
    """What the catalogue calls a grouping expression's type; None if it cannot be asked now."""
    try:
        declared, name = declare_groups(table, str(group))
        return column_types(declared, [name])[name].upper()
    except DpflowError:
        return None


def _is_plain(text: str) -> bool:
    """Whether a text writes a value of no other type."""
    return not any(written.fullmatch(text) for written in _WRITTEN.values())


def _writes(kind: str, texts: Sequence[str]) -> bool:
    """Whether texts write different values of a type."""
    base = kind.partition("(")[0]
    if base in _INTEGERS:
        written = _WRITTEN["BIGINT"]
    elif base == "DECIMAL":
        written = _WRITTEN["DOUBLE"]
    elif base in _WRITTEN:
        written = _WRITTEN[base]
    else:
        return True
    if not all(map(written.fullmatch, texts)):
        return False
    if base not in (*_INTEGERS, "DECIMAL", "DOUBLE"):
        return True
    values = list(map(Decimal, texts))
    # Two texts of one number would be one key.
    return all(_holds(kind, one) for one in values) and len(set(values)) == len(set(texts))


def _holds(kind: str, value: Decimal) -> bool:
    """Whether a type of numbers has a value, which it writes with all digits."""
    if kind in _INTEGERS:
        low, end = _INTEGERS[kind]
        return low <= value < end
    _, digits, exponent = value.as_tuple()
    if kind == "DOUBLE":
        return len(digits) <= 15
    width, scale = _read_digits(kind)
    assert isinstance(exponent, int)
    return -exponent <= scale and len(digits) + exponent <= width - scale


def _join_kinds(kinds: Collection[str]) -> str:
    """A type that holds all values of several, written as they are."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return "HUGEINT" if set(kinds) == {"BIGINT", "HUGEINT"} else "VARCHAR"


def _name_kind(kind: str) -> str:
    """What a key of one of the source's types is here."""
    name = kind.partition("(")[0]
    if name in ("BOOLEAN", "DATE"):
        return name
    if name in ("UBIGINT", "HUGEINT", "UHUGEINT"):
        return "HUGEINT" if name == "UBIGINT" else name
    if name.endswith("INT") or name == "INTEGER":
        return "BIGINT"
    if name == "DECIMAL":
        return kind if _is_wide(kind) else "DOUBLE"
    # A TIMESTAMP holds no nanoseconds: two keys would be one.
    return "TIMESTAMP" if name.startswith("TIMESTAMP") and name != "TIMESTAMP_NS" else "VARCHAR"


def _is_wide(kind: str) -> bool:
    """Whether a type of decimals has more digits than a double writes."""
    return _read_digits(kind)[0] > 15


def _read_digits(kind: str) -> tuple[int, int]:
    """Digits of a type of decimals, and those behind the point."""
    width, scale = kind.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return int(width), int(scale)


def is_text(node: Node) -> bool:
    """Whether an expression's values are texts whatever they write; of a column nothing says it."""
    if node.op == "CASE":
        values = [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
        return any(map(is_text, values))
    if node.op in ("coalesce", "least", "greatest"):
        return any(map(is_text, node.args))
    return node.op in ("text", "lower", "upper") or (
        node.op == "CAST" and node.args[1] == "VARCHAR"
    )
