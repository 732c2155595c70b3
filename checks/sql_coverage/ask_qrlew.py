"""Reads questions as JSON, and prints for each the unit under which Qrlew rewrites it, or its first error.

Runs in an environment of its own, with pyqrlew. The tables are empty ones of SQLite: Qrlew looks at
their columns only.
"""

import json
import sys

import sqlalchemy as sa
from pyqrlew import Dataset

KINDS = {"BIGINT": "INTEGER", "INTEGER": "INTEGER", "DATE": "DATE", "DOUBLE": "FLOAT"}


def open_dataset(tables: dict[str, dict[str, str]]) -> Dataset:
    """Empty tables with these columns."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        for table, columns in tables.items():
            kinds = {
                name: "FLOAT" if kind.startswith("DECIMAL") else KINDS.get(kind, "VARCHAR")
                for name, kind in columns.items()
            }
            definitions = ", ".join(f'"{name}" {kind} NOT NULL' for name, kind in kinds.items())
            connection.execute(sa.text(f'CREATE TABLE "{table}" ({definitions})'))
    dataset = Dataset.from_database("db", engine)
    return dataset


def ask(dataset: Dataset, question: dict[str, object]) -> str:
    """``accepted``, or the first error."""
    first = ""
    for paths in question["paths"].values():
        protected = [
            (table, [tuple(step) for step in path], column) for table, path, column in paths
        ]
        try:
            dataset.relation(question["text"]).rewrite_with_differential_privacy(
                dataset,
                protected,
                {"epsilon": 1.0, "delta": 1e-6},
                max_multiplicity=10.0,
                max_multiplicity_share=1.0,
            )
        except BaseException as error:  # noqa: BLE001  its panics are no Exceptions
            first = first or f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        return "accepted"
    return first


verdicts = {}
for name, group in json.load(sys.stdin).items():
    dataset = open_dataset(group["tables"])
    verdicts[name] = {key: ask(dataset, one) for key, one in group["questions"].items()}
json.dump(verdicts, sys.stdout)
