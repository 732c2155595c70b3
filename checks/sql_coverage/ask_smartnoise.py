"""Reads questions as JSON, and prints for each whether SmartNoise SQL validates and rewrites it, or its
first error.

Runs in an environment of its own, with smartnoise-sql. It never reaches a database.
"""

import json
import sys
import warnings

warnings.filterwarnings("ignore")
import snsql  # noqa: E402

KINDS = {"BIGINT": "int", "INTEGER": "int", "DATE": "datetime", "DOUBLE": "float"}


class NoDatabase:
    """A connection that is never used."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


def describe(tables: dict[str, dict[str, str]], units: dict[str, str]) -> dict[str, object]:
    """Metadata: bounds for all numbers, and each unit's column as the private key."""
    described: dict[str, object] = {}
    for table, columns in tables.items():
        fields: dict[str, object] = {"max_ids": 10, "sample_max_ids": True, "clamp_columns": True}
        fields["row_privacy"] = False
        for name, kind in columns.items():
            kind = "float" if kind.startswith("DECIMAL") else KINDS.get(kind, "string")
            fields[name] = {"type": kind} | (
                {"lower": 0, "upper": 100} if kind in ("int", "float") else {}
            )
        if table in units:
            fields[units[table]] = {"type": "int", "private_id": True}
        described[table] = fields
    return {"": {"main": described}}


def ask(tables: dict[str, dict[str, str]], question: dict[str, object]) -> str:
    """``accepted``, or the first error."""
    first = ""
    for units in question["units"].values():
        reader = snsql.from_connection(
            NoDatabase(),
            privacy=snsql.Privacy(epsilon=1.0, delta=1e-6),
            metadata=describe(tables, units),
            engine="postgres",
        )
        try:
            reader._rewrite(question["qualified"])
        except Exception as error:  # noqa: BLE001  whatever stops it
            first = first or f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        return "accepted"
    return first


print_to, sys.stdout = sys.stdout, sys.stderr
verdicts = {
    name: {key: ask(group["tables"], one) for key, one in group["questions"].items()}
    for name, group in json.load(sys.stdin).items()
}
json.dump(verdicts, print_to)
