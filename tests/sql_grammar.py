"""Random queries: mostly of the accepted language, with parts of all kinds that are not."""

from __future__ import annotations

import random

#: Columns by what they can do; some that nobody declared.
NUMBERS = ["age", "cost", '"AGE"', "visits.cost", "v.age", "weight"]
KEYS = [
    "city",
    "clinic",
    "bucket(age, 20)",
    "hour(seen)",
    "dayofweek(seen)",
    "age > 30",
    "tag",
    "zone",
]
#: What the declaration joins, a private and a public relation, and equalities that it does not.
JOINS = [
    ("visits v LEFT JOIN people p ON v.person = p.id", ["p.weight", "weight"], ["p.kind", "kind"]),
    ("visits v JOIN places p ON p.name = v.city", ["p.size", "size"], ["zone", "p.zone", "p.name"]),
    ("visits LEFT JOIN places ON (visits.city = places.name)", ["places.size"], ["places.zone"]),
    ("places AS p, visits AS v", ["p.size"], ["p.zone", "tag"]),
    (
        "visits v JOIN places q ON city = q.name LEFT JOIN people p ON v.person = p.id",
        ["p.weight", "q.size", "q.size * p.weight"],
        ["p.kind", "q.zone"],
    ),
]
ODD_JOINS = [
    "visits v JOIN people p ON v.person = p.id",
    "visits v LEFT JOIN people p ON v.age = p.weight",
    "visits v JOIN visits w ON v.person = w.person",
    "visits v FULL JOIN places p ON v.city = p.name",
    "visits, people",
    "people p LEFT JOIN visits v ON v.person = p.id",
    "visits v LEFT JOIN people p ON v.person = p.id AND p.weight > 1",
    "visits NATURAL JOIN people",
    "visits JOIN (SELECT * FROM people) p ON person = id",
]
ODD = ["person", "nobody", "city", "seen", "*", "v.*", "NULL", "$1", "'x'", "random()", '"; DROP"']
CLAUSES = [
    "QUALIFY 1 = 1",
    "LIMIT 3",
    "LIMIT 0 OFFSET 2",
    "LIMIT 10%",
    "ORDER BY 1 DESC",
    "ORDER BY COUNT(*) + 1, 1",
    "ORDER BY n NULLS FIRST",
    "HAVING COUNT(*) > 1",
    "HAVING n > 1 AND city <> 'a'",
    "; SELECT 1",
    "UNION ALL SELECT 1",
    "WINDOW w AS ()",
    "-- end",
]


class Grammar:
    """Makes one query after the other, all of them functions of the seed."""

    def __init__(self, seed: int, odd: float = 0.02) -> None:
        self.random, self.odd = random.Random(seed), odd

    def choose(self, *options: str) -> str:
        return self.random.choice(options)

    def number(self, depth: int = 2) -> str:
        """A row expression that is a number, most often."""
        if self.random.random() < self.odd:
            return self.choose(*ODD)
        if depth == 0 or self.random.random() < 0.4:
            return self.choose(*NUMBERS, "2", "-0.5", "1e3")
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.choose(
            f"({a} + {b})",
            f"{a} - {b}",
            f"{a} * {b}",
            f"{a} / {b}",
            f"{a} % 7",
            f"abs({a})",
            f"least({a}, {b}, 50)",
            f"greatest({a}, 0)",
            f"coalesce({a}, {b})",
            f"CASE WHEN {self.condition(depth - 1)} THEN {a} ELSE {b} END",
            f"least(greatest({a}, -10), 90)",
        )

    def condition(self, depth: int = 2) -> str:
        if self.random.random() < self.odd:
            return self.choose(
                "TRUE", "NULL", "age", "city = 1", "1 IN (SELECT 1)", "city ILIKE 'a'"
            )
        if depth == 0 or self.random.random() < 0.5:
            return self.choose(
                f"{self.number(0)} {self.choose('<', '>', '=', '<>', '>=')} {self.number(1)}",
                f"city {self.choose('=', '<>')} {self.choose(chr(39) + 'a' + chr(39), chr(39) + 'é' + chr(39))}",
                "city IN ('a', 'b')",
                "clinic LIKE 'x%'",
                f"{self.number(0)} IS NULL",
                "city IS NOT NULL",
                "age BETWEEN 10 AND 40",
                "seen >= '2020-01-02'",
                "year(seen) = 2020",
            )
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        return self.choose(f"({a} AND {b})", f"({a} OR {b})", f"NOT ({a})", f"{a} AND {b}")

    def aggregate(self) -> str:
        if self.random.random() < self.odd:
            return self.choose(
                "SUM(SUM(age))", "ANY_VALUE(age)", "COUNT(DISTINCT clinic)", "SUM(age) OVER ()", "LIST(age)",
                "MAX(city)", "MODE(age)", "COUNT(*, 1)", "quantile_cont(age, 2)",
            )  # fmt: skip
        x = self.number()
        call = self.choose(
            *["COUNT(*)", f"COUNT({x})", "COUNT(DISTINCT person)", f"SUM({x})", f"AVG({x})"] * 3,
            *[f"VAR_POP({x})", f"VAR_SAMP({x})", f"STDDEV({x})", f"COUNT_IF({self.condition()})"],
            *[f"MEDIAN({x})", f"MIN({x})", "MAX(cost)", f"QUANTILE_CONT({x}, 0.25)"],
            *["MODE(city)", "HISTOGRAM(city)", "COUNT(DISTINCT city)"],
        )
        if self.random.random() < 0.25:
            call += f" FILTER (WHERE {self.condition()})"
        return call

    def output(self, depth: int = 1) -> str:
        """An expression over released numbers."""
        if depth == 0 or self.random.random() < 0.6:
            return self.aggregate()
        a, b = self.output(depth - 1), self.output(depth - 1)
        return self.choose(
            f"{a} + {b}",
            f"{a} / {b}",
            f"ROUND({a}, 1)",
            f"CASE WHEN {a} > 3 THEN {b} END",
            f"COALESCE({a}, 0)",
            f"NULLIF({a}, {b})",
            f"CAST({a} AS DOUBLE)",
        )

    def query(self) -> str:
        """A SELECT over rows, or one over such queries."""
        if self.random.random() < 0.75:
            return self.select()
        return self.choose(*self.compositions())

    def compositions(self) -> list[str]:
        """CTEs, brackets, unions, joins of releases, values in brackets and several groupings, with
        conditions and keys that may be odd.
        """
        keys = [self.choose("city", "clinic", "bucket(age, 20)", "tag") for _ in range(2)]
        one, two = (
            f"SELECT {key} AS k, {self.aggregate()} AS n FROM visits"
            f"{self.choose('', f' WHERE {self.condition()}')} GROUP BY {key}"
            for key in keys
        )
        rows = self.choose(
            f"SELECT * FROM visits WHERE {self.condition()}",
            f"SELECT *, {self.number()} AS extra FROM visits",
            f"SELECT city, clinic, age, cost, seen, person FROM visits v WHERE {self.condition()}",
        )
        released = self.choose("SUM(n)", "COUNT(*)", "MAX(n)", "AVG(n)", "MEDIAN(n)", "MIN(k)")
        joined = self.choose("JOIN", "LEFT JOIN", "CROSS JOIN", "FULL JOIN")
        both = "" if joined == "CROSS JOIN" else f" ON a.k {self.choose('=', '=', '<')} b.k"
        a, b = keys
        levels = self.choose(
            f"ROLLUP ({a}, {b})", f"CUBE ({a}, {b})", f"GROUPING SETS (({a}, {b}), ({a}), ())", f"ROLLUP ({a})"
        )  # fmt: skip
        return [
            f"WITH r AS ({one}) SELECT k, n * 2 AS m FROM r WHERE n > {self.choose('1', 'k', 'NULL')} ORDER BY m LIMIT 2",
            f"WITH r AS ({one}) SELECT {released} FROM r {self.choose('', 'WHERE n > 0', 'GROUP BY k')}",
            f"SELECT {released} FROM ({one}) q",
            f"WITH v AS ({rows}) SELECT {self.choose('city', 'tag')} AS k, {self.aggregate()} FROM v GROUP BY k",
            f"WITH v AS ({rows}) {self.select('v')}",
            f"{one} {self.choose('UNION ALL', 'UNION ALL', 'UNION', 'EXCEPT')} {two}",
            f"WITH a AS ({one}), b AS ({two}) SELECT a.k, a.n / b.n FROM a {joined} b{both}",
            f"SELECT {self.aggregate()} / (SELECT {self.aggregate()} FROM visits) AS share FROM visits",
            f"SELECT {self.aggregate()}, GROUPING({a}) FROM visits GROUP BY {levels}",
            f"SELECT {a} AS k, {b}, {self.aggregate()}, {self.aggregate()} FROM visits GROUP BY {levels}",
            *[self.joined() for _ in range(3)],
        ]

    def joined(self) -> str:
        """A SELECT over rows with those of other relations."""
        source, numbers, keys = self.random.choice(JOINS)
        if self.random.random() < 3 * self.odd:
            source = self.choose(*ODD_JOINS)
        number = self.choose(*numbers, f"{self.choose(*numbers)} + {self.number()}")
        key = self.choose(*keys)
        tests = [self.choose(f"{number} > 2", f"{key} = 'north'", f"{key} IS NOT NULL", "age < 50")]
        if ", " in source:
            tests.append("p.name = v.city")
        self.random.shuffle(tests)
        aggregates = [
            self.choose("COUNT(*)", "COUNT(DISTINCT person)", self.aggregate()),
            self.choose(
                f"SUM({number})", f"AVG({number})", f"COUNT({number})", f"MEDIAN({number})"
            ),
        ]
        if self.random.random() < 0.3:
            aggregates[0] += f" FILTER (WHERE {self.condition()})" * ("FILTER" not in aggregates[0])
        where = (
            f" WHERE {' AND '.join(tests)}" if len(tests) > 1 or self.random.random() < 0.5 else ""
        )
        if self.random.random() < 0.2:
            rows = f"SELECT *, {key} AS k, {number} AS x FROM {source}{where}"
            return f"WITH r AS ({rows}) SELECT k, {aggregates[0]}, SUM(x) FROM r GROUP BY k"
        if self.random.random() < 0.5:
            return f"SELECT {', '.join(aggregates)} FROM {source}{where}"
        return f"SELECT {key}, {', '.join(aggregates)} FROM {source}{where} GROUP BY {key}"

    def select(self, source: str = "") -> str:
        """One SELECT over rows."""
        groups = self.random.sample(KEYS, self.random.choice([0, 0, 1, 1, 2]))
        items = [group for group in groups if self.random.random() < 0.8]
        items += [self.output() for _ in range(self.random.choice([1, 1, 2, 3]))]
        items[-1] += self.choose("", " AS n", ' AS "Größe"')
        text = f"SELECT {', '.join(items)} FROM {source or self.choose('visits v', 'Visits AS v', 'visits')}"
        if self.random.random() < 0.5:
            text += f" WHERE {self.condition()}"
        if groups:
            text += f" GROUP BY {', '.join(groups)}"
        if self.random.random() < 0.3:
            text += f" {self.choose(*CLAUSES)}"
        if self.random.random() < self.odd:
            place = self.random.randrange(len(text))
            text = text[:place] + self.choose("(", "'", ")", "\0", "é", "--", " ") + text[place:]
        return text
