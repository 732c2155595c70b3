"""SQL over a published distribution: macros beside the published table, so that any DuckDB session asks
for shares and quantiles as `dpflow.core.contract.distribution` does in Python.

``TABLE_share_below(release, x)`` gives ``{value, low, high}``, ``TABLE_quantile(release, p)`` also
``only_a_bound``: whether there is no value, but an end. The first argument is a release's id, or its name:
then that of the latest interval, or the one settled last where runs have none; where seconds do not
tell, the one with the largest id. Numbers are doubles,
quantiles of whole numbers and dates are such; dates and timestamps count as seconds since 1970-01-01, and x
may be written as one. Of edges that doubles cannot tell apart none bounds a share at itself. An end that
nothing bounds is NULL for quantiles, and so is then their value, as is one whose rank may be off by more
than `MAX_RANK_ERROR`; it is 0 or 1 for shares.
"""

from __future__ import annotations

import duckdb

from dpflow.core.contract.distribution import MAX_RANK_ERROR, SHARE_BELOW
from dpflow.core.contract.published_release import RUN_INTERVAL
from dpflow.tables.access import sql

#: The mechanism whose releases have these macros.
MECHANISM = "cdf"


def create_macros(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make both macros of a published table, or bring them to today's form."""
    name = sql.quote_name(table)
    # As `find_interval` does.
    start = f"TRY_CAST(left(regexp_extract(run, '{RUN_INTERVAL}', 1), 19) AS TIMESTAMP)"
    interval = f"CASE WHEN {start} <= released_at + INTERVAL 1 DAY THEN {start} END"
    latest = (
        f"SELECT arg_max(release_id, ({interval} IS NOT NULL, {interval}, released_at, release_id)) FROM {name} "
        f"WHERE release = of_release AND mechanism = '{MECHANISM}'"
    )
    edges = (
        f"WITH e AS MATERIALIZED (SELECT {_number('group_key')} AS k, raw_value AS v, half_width_95 AS h, "
        f"group_key AS text, {_is_exact('group_key', 'k')} AS exact FROM {name} "
        f"WHERE measure = '{SHARE_BELOW}' AND mechanism = '{MECHANISM}' "
        f"AND (release_id = of_release OR release_id = ({latest})))"
    )
    x = _number("CAST(x AS VARCHAR)")
    share = (
        f"({edges}, q AS (SELECT {x} AS place), f AS (SELECT any_value(place) AS place, "
        "max(k) FILTER (k <= place) AS k0, max(v) FILTER (k <= place) AS v0, "
        "min(k) FILTER (k > place) AS k1, min(v) FILTER (k > place) AS v1, "
        "coalesce(greatest(0, max(v - h) FILTER (k < place OR exact AND k = place)), 0) AS low, "
        "coalesce(least(1, min(v + h) FILTER (k > place OR exact AND k = place)), 1) AS high FROM e, q) "
        "SELECT {'value': CASE WHEN place = k0 THEN v0 WHEN k0 IS NULL THEN v1 / 2 WHEN k1 IS NULL THEN (v0 + 1) / 2 "
        "ELSE v0 + (v1 - v0) * ((place - k0) / (k1 - k0)) END, 'low': low, 'high': high} FROM f)"
    )
    # Of whole numbers and dates, how far apart two are; NULL of others, of which a double's neighbour is next.
    unit = (
        "CASE WHEN bool_and(regexp_full_match(text, '-?[0-9]+')) THEN 1 "
        "WHEN bool_and(text LIKE '____-__-__') THEN 86400 END"
    )
    quantile = (
        f"({edges}, f AS (SELECT max(k) FILTER (v < p) AS k0, max(v) FILTER (v < p) AS v0, "
        "min(k) FILTER (v >= p) AS k1, min(v) FILTER (v >= p) AS v1, "
        f"max(k) FILTER (v + h < p) AS low, min(k) FILTER (v - h >= p) AS high, {unit} AS unit FROM e), "
        "g AS (SELECT *, k0 + (k1 - k0) * ((p - v0) / (v1 - v0)) AS inner_place FROM f), "
        "i AS (SELECT low, high, unit, CASE WHEN k0 IS NULL THEN k1 WHEN k1 IS NULL THEN k0 "
        "WHEN unit IS NULL THEN inner_place "
        "ELSE k0 + unit * greatest(0, ceil((inner_place - k0) / unit) - 1) END AS place FROM g), "
        "n AS (SELECT *, coalesce(place + unit, place + greatest(abs(place) * 2.3e-16, 5e-324)) AS next FROM i), "
        # How far its rank may be off: the share below it is not above, and that up to it not below.
        "r AS (SELECT any_value(low) AS low, any_value(high) AS high, any_value(place) AS place, "
        "greatest(coalesce(least(1, min(v + h) FILTER (k > place OR exact AND k = place)), 1) - p, "
        "p - coalesce(max(v - h) FILTER (k <= next), 0), 0) AS rank FROM e, n), "
        "s AS (SELECT low, high, CASE WHEN low IS NULL OR high IS NULL OR "
        f"rank > {MAX_RANK_ERROR} THEN NULL ELSE place END AS value FROM r) "
        "SELECT {'value': value, 'low': low, 'high': high, "
        "'only_a_bound': value IS NULL AND coalesce(low, high) IS NOT NULL} FROM s)"
    )
    for macro, parameter, body in (("share_below", "x", share), ("quantile", "p", quantile)):
        connection.execute(
            f"CREATE OR REPLACE MACRO {sql.quote_name(f'{table}_{macro}')}(of_release, {parameter}) AS {body}"
        )


def _number(text: str) -> str:
    """An edge or argument as a number."""
    return f"coalesce(TRY_CAST({text} AS DOUBLE), epoch(TRY_CAST({text} AS TIMESTAMP)))"


def _is_exact(text: str, number: str) -> str:
    """Whether no other edge has the same double: few digits, the double's own text, or a timestamp of
    an age in which a double tells microseconds apart.
    """
    return (
        f"(length({text}) <= 15 OR CAST({number} AS VARCHAR) = {text} "
        f"OR ({text} LIKE '%:%' AND abs({number}) < 8589934592))"
    )
