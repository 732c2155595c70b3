"""Three small event tables, and the questions about them that docs/research/analyst-questions.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import yaml

PAGE = Path(__file__).parents[1] / "docs" / "research" / "analyst-questions.md"

ROWS = """
CREATE TABLE orders AS
SELECT (i * 7919) % 300 AS customer, DATE '2023-01-01' + ((i * 37) % 730)::INTEGER AS day,
       DATE '2023-01-01' + ((i * 37) % 730 + i % 9)::INTEGER AS shipped,
       ((i * 13) % 800) / 4.0 AS amount, 1 + i % 5 AS items, 'SKU-' || (i % 40) AS product,
       ['Books', 'Food', 'Toys', 'Garden', 'Food'][1 + (i + i // 7) % 5] AS category, ['NO', 'IT', 'US'][1 + i % 3] AS country,
       CASE WHEN i % 6 = 0 THEN 'SPRING' || (i % 4) END AS coupon, i % 11 = 0 AS returned
FROM range(3000) t(i);
CREATE TABLE sessions AS
SELECT (i * 7907) % 250 AS visitor, TIMESTAMP '2024-01-01' + to_minutes((i * 211) % 262000) AS started,
       (i * 17) % 60 AS minutes, 1 + (i * 3) % 12 AS pages, ['/home', '/shop', '/help', '/cart'][1 + (i * 5) % 4] AS page,
       ['phone', 'desktop', 'tablet', 'phone'][1 + (i + i // 5) % 4] AS device, 'ref-' || (i % 12) AS referrer, i % 8 = 0 AS bought
FROM range(3000) t(i);
CREATE TABLE trips AS
SELECT (i * 7901) % 200 AS rider, TIMESTAMP '2024-03-01' + to_minutes((i * 97) % 130000) AS pickup,
       TIMESTAMP '2024-03-01' + to_minutes((i * 97) % 130000 + 4 + i % 50) AS dropoff,
       (4 + i % 50) / 2.0 AS km, 3 + ((i * 11) % 50) / 2.0 AS fare, CASE WHEN i % 4 = 0 THEN 0 ELSE (i % 12) / 2.0 END AS tip,
       'zone ' || (i % 20) AS zone, ['card', 'cash'][1 + i % 2] AS payment
FROM range(3000) t(i);
"""
_BOUNDS = {"rows": 40, "groups": 40}
DECLARATIONS: dict[str, dict[str, Any]] = {
    "orders": {
        "privacy_unit": {"column": "customer"},
        "columns": {
            "day": {"lower": "2023-01-01", "upper": "2024-12-31"},
            "shipped": {"lower": "2023-01-01", "upper": "2025-01-31"},
            "amount": {"lower": 0, "upper": 200, "step": "0.25"},
            "items": {"lower": 0, "upper": 10},
            "product": {},
            "category": {"public_keys": ["Books", "Food", "Garden", "Toys"]},
            "country": {"public_keys": ["IT", "NO", "US"]},
            "coupon": {},
            "returned": {},
        },
    },
    "sessions": {
        "privacy_unit": {"column": "visitor"},
        "columns": {
            "started": {"lower": "2024-01-01", "upper": "2024-06-30"},
            "minutes": {"lower": 0, "upper": 60},
            "pages": {"lower": 0, "upper": 20},
            "page": {"public_keys": ["/cart", "/help", "/home", "/shop"]},
            "device": {"public_keys": ["desktop", "phone", "tablet"]},
            "referrer": {},
            "bought": {},
        },
    },
    "trips": {
        "privacy_unit": {"column": "rider"},
        "columns": {
            "pickup": {"lower": "2024-03-01", "upper": "2024-06-01"},
            "dropoff": {"lower": "2024-03-01", "upper": "2024-06-02"},
            "km": {"lower": 0, "upper": 30, "step": "0.5"},
            "fare": {"lower": 0, "upper": 30, "step": "0.5"},
            "tip": {"lower": 0, "upper": 6, "step": "0.5"},
            "zone": {},
            "payment": {"public_keys": ["card", "cash"]},
        },
    },
}


#: A public table, which queries join after the noise.
POPULATION = (
    "country,name,people\nNO,Norway,5600000\nIT,Italy,58900000\nUS,United States,340100000\n"
)

DIALECTS = ("bigquery", "snowflake", "postgres")


def options_of(text: str) -> dict[str, str]:
    """What a question is asked with; its own clause may say the price."""
    dialect, mark, _ = text.partition(": ")
    price = {} if "OPTIONS(" in text else {"epsilon": "1", "delta": "1e-6"}
    return price | ({"dialect": dialect} if mark and dialect in DIALECTS else {})


class Question(NamedTuple):
    """One line of the page."""

    number: int
    theme: str
    sql: str
    status: str

    @property
    def rule(self) -> str | None:
        """The rule that refuses it; None where it is answered."""
        match = re.match(r"refused by `([^`]+)`", self.status)
        return match[1] if match else None

    @property
    def query(self) -> str:
        """The SQL without the word that says its dialect."""
        dialect, _, rest = self.sql.partition(": ")
        return rest if dialect in DIALECTS else self.sql


def read_questions() -> list[Question]:
    """The page's tables."""
    questions, theme = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            theme = line[3:]
        if match := re.fullmatch(
            r"\| (\d+) \| (``?) ?(.*?) ?\2 \| ([^|]*(?:`[^`]*`[^|]*)*) \|", line
        ):
            questions.append(Question(int(match[1]), theme, match[3], match[4]))
    return questions


def make_tables(folder: Path) -> None:
    """The rows, their declarations, a public table and a ``dpflow.yml``."""
    (folder / "population.csv").write_text(POPULATION)
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.execute(ROWS)
        connection.execute(
            f"CREATE TABLE population AS FROM read_csv({str(folder / 'population.csv')!r})"
        )
    for name, declared in DECLARATIONS.items():
        content = {"name": name, "database": "shop.duckdb", "contribution_bounds": _BOUNDS}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content | declared))
    catalogue = {
        "public": {"population": "population.csv"},
        "ledger": "ledger.sqlite",
        "scope": "shop",
        "tables": {name: f"{name}.yml" for name in DECLARATIONS},
    }
    (folder / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
