"""Every function that SQL over released rows may call gives the same in another process at another time.

The calls are generated from DuckDB's own list of functions: each overload with samples of its parameters' types. Where
there is a C compiler, the second process lives 400 days later.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpflow.tables.public.query_worker import LockedDatabase, RejectedPart

TIME = "'12:34:56'"
MOMENT = "'2020-02-29 12:34:56.789'"
#: Expressions of a type, of a row's number i where rows are taken together; of other types, a number or a NULL.
SAMPLES: dict[str, tuple[str, ...]] = {
    "VARCHAR": ("'year'", "'%Y-%m-%d'", "'America/New_York'", "'1'", "'{\"a\": [1]}'"),
    "BOOLEAN": ("i % 2 = 0",),
    "DATE": ("DATE '2020-02-29'", "DATE '2021-03-01'"),
    "INTERVAL": ("INTERVAL 40 DAY", "INTERVAL 1 MONTH"),
    "BLOB": ("'ab'::BLOB",),
    "BIT": ("'0101'::BIT",),
    "UUID": ("'00000000-0000-0000-0000-000000000001'::UUID",),
    "JSON": ("'{\"a\": [1, 2]}'::JSON",),
    "VARIANT": ("[1, 2]::VARIANT",),
    "LAMBDA": ("lambda x: x", "lambda x, y: x"),
    "MAP(K, V)": ("MAP {'a': 1, 'b': 2}",),
    "K": ("'a'",),
    "STRUCT": ("{'a': 1}",),
    "UNION": ("union_value(a := 1)",),
    "TUPLE(K, V)[]": ("[('a', 1)]",),
    "VARCHAR[]": ("['year', 'day']", "['a']"),
    "T[][]": ("[[1, 2], [3]]",),
    "TIME": (f"TIME {TIME}",),
    "TIME_NS": (f"{TIME}::TIME_NS",),
    "TIME WITH TIME ZONE": (f"({TIME} || '+02')::TIMETZ",),
    **{
        kind: (f"{MOMENT}::{kind}", f"'2021-03-01 00:00:00'::{kind}")
        for kind in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIMESTAMP WITH TIME ZONE")
    },
    **{
        kind: (f"CAST((i * 7 % 100) AS {kind})", f"CAST(2 AS {kind})")
        for kind in (
            *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM"),
            *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
        )
    },
    **{
        kind: (f"CAST((i * 7 % 100) AS {kind})", f"CAST(0.5 AS {kind})")
        for kind in ("FLOAT", "DOUBLE", "DECIMAL")
    },
    **{kind: ("[3, 1, 2]",) for kind in ("ANY[]", "T[]", "K[]", "V[]", "BIGINT[]")},
    **{kind: (f"[1.5, 2, 0]::{kind}",) for kind in ("DOUBLE[]", "FLOAT[]", "DOUBLE[3]", "FLOAT[3]")},
    "DOUBLE[ANY]": ("[1.5, 2, 0]::DOUBLE[3]",),
    "FLOAT[ANY]": ("[1.5, 2, 0]::FLOAT[3]",),
    "BOOLEAN[]": ("[true, false]",),
}  # fmt: skip
ANY = ("(i * 7 % 100)", "0.5", "'sum'", "'a'")
ANY_OF_MACROS = ("[3, 1, 2]", "2", "DATE '2020-02-29'", "'a'")

#: Refused functions that two runs tell apart, and those that take a clock to be told apart.
RANDOM = {"random", "uuid", "gen_random_uuid", "uuidv7", "now"}
OF_THE_CLOCK = {
    "current_date",
    "today",
    "current_localtime",
    "current_localtimestamp",
    "age",
    "timezone",
}

#: A clock that is ahead by some days.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#define AHEAD (atol(getenv("DAYS_AHEAD")) * 86400)
int clock_gettime(clockid_t id, struct timespec *out) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, out);
    if (id == CLOCK_REALTIME) out->tv_sec += AHEAD;
    return failed;
}
int gettimeofday(struct timeval *out, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(out, zone);
    out->tv_sec += AHEAD;
    return failed;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


def list_calls(database: LockedDatabase, whole: bool) -> dict[str, set[str]]:
    """Queries that call each function of the catalogue, by its name; or of those only that DuckDB does not call
    consistent itself.
    """
    rows = database._connection.execute(
        "SELECT DISTINCT function_name, function_type, parameter_types FROM duckdb_functions() AS f "
        "WHERE function_type IN ('scalar', 'aggregate', 'window', 'macro') AND (? OR EXISTS ("
        "FROM duckdb_functions() AS g WHERE g.function_name = f.function_name AND g.stability <> 'CONSISTENT'))",
        [whole],
    ).fetchall()
    calls: dict[str, set[str]] = {}
    for name, kind, types in rows:
        others = ANY_OF_MACROS if kind == "macro" else ANY
        samples = [SAMPLES.get(one, others) for one in types]
        for turn in range(max([1, *map(len, samples)])):
            # Later parameters are often settings, such as a share: they take the last sample first.
            given = [s[(turn if at == 0 else -1 - turn) % len(s)] for at, s in enumerate(samples)]
            over = " OVER (ORDER BY i)" if kind == "window" else ""
            rows_read = 60 if kind in ("aggregate", "window") else 1
            calls.setdefault(name, set()).add(
                f'SELECT "{name}"({", ".join(given)}){over} FROM range(1, {1 + rows_read}) t(i)'
            )
    return calls


def run_calls(whole: bool) -> dict[str, dict[str, tuple[bool, str]]]:
    """For each function its calls: whether it is allowed, and its values, or an error's text."""
    database = LockedDatabase("500MB")
    outcomes: dict[str, dict[str, tuple[bool, str]]] = {}
    for name, queries in list_calls(database, whole).items():
        for query in sorted(queries):
            allowed = True
            # The rule takes names, and of one name also the number of arguments.
            if not database._is_deterministic(name) or name == "age":
                try:
                    database._check_tree(database._parse(query))
                except RejectedPart:
                    allowed = False
            if not allowed and name not in RANDOM | OF_THE_CLOCK:
                continue
            try:
                answer = repr(database._connection.execute(query).fetchall())
            except Exception as error:
                answer = f"{type(error).__name__} Error: {error}"
            outcomes.setdefault(name, {})[query] = (allowed, answer)
    return outcomes


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_allowed_call_gives_the_same_later(tmp_path: Path, whole: bool) -> None:
    """Of all functions, or of those that DuckDB calls consistent within one query only; what is volatile differs, so
    the comparison can tell.
    """
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    program = f"import json, {Path(__file__).stem} as t; print(json.dumps(t.run_calls({whole})))"
    if compiler := shutil.which("cc"):
        (tmp_path / "clock.c").write_text(CLOCK)
        library = str(tmp_path / "clock.so")
        words = ("-shared", "-fPIC", "-o", library, str(tmp_path / "clock.c"), "-ldl")
        subprocess.run([compiler, *words], check=True)
        environ["LD_PRELOAD"] = library
    runs = []
    for days, zone in (("0", "UTC"), ("120", "Asia/Tokyo"), ("240", "America/New_York")):
        own = environ | {"DAYS_AHEAD": days, "TZ": zone}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=own, capture_output=True, check=True, cwd=tmp_path)
        runs.append(json.loads(done.stdout))
    differing, named, valued = set(), set(), set()
    assert all([*map(list, run.values())] == [*map(list, runs[0].values())] for run in runs)
    for name, outcomes in runs[0].items():
        for query, (allowed, answer) in outcomes.items():
            if any(run[name][query] != [allowed, answer] for run in runs):
                assert not allowed, query
                differing.add(name)
            if allowed:
                named.add(name)
                valued |= set() if " Error: " in answer else {name}
    assert differing == (RANDOM | OF_THE_CLOCK if compiler else RANDOM)
    # Most functions give a value for some sample, so more is compared than the text of errors.
    print(
        sum(map(len, runs[0].values())),
        "calls of",
        len(named),
        "functions; without a value:",
        sorted(named - valued),
    )
    assert len(named) > (600 if whole else 40) and len(valued) > 0.85 * len(named)
