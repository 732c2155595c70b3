"""Whose rows a query may protect: for each unit, the tables that hold it and how."""

from __future__ import annotations

from checks.sql_coverage import tutorials

#: By list and unit: the tables with a column of the unit.
UNITS: dict[str, dict[str, dict[str, str]]] = {
    "TPC-H": {
        "customer": {"customer": "c_custkey", "orders": "o_custkey"},
        "order": {"orders": "o_orderkey", "lineitem": "l_orderkey"},
        "supplier": {
            "supplier": "s_suppkey",
            "partsupp": "ps_suppkey",
            "lineitem": "l_suppkey",
        },
        "part": {"part": "p_partkey", "partsupp": "ps_partkey", "lineitem": "l_partkey"},
    },
    "TPC-DS": {
        "customer": {
            "customer": "c_customer_sk",
            "store_sales": "ss_customer_sk",
            "store_returns": "sr_customer_sk",
            "catalog_sales": "cs_bill_customer_sk",
            "catalog_returns": "cr_returning_customer_sk",
            "web_sales": "ws_bill_customer_sk",
            "web_returns": "wr_returning_customer_sk",
        },
        "item": {
            "item": "i_item_sk",
            "inventory": "inv_item_sk",
            "store_sales": "ss_item_sk",
            "store_returns": "sr_item_sk",
            "catalog_sales": "cs_item_sk",
            "catalog_returns": "cr_item_sk",
            "web_sales": "ws_item_sk",
            "web_returns": "wr_item_sk",
        },
    },
    "PipelineDP": {table: {table: column} for table, column in tutorials.UNITS.items()},
    "Tumult": {"member": {"members": "id", "checkouts": "member_id"}},
}
#: Tables that belong to a unit by way of another one, which Qrlew follows: column, table, its key, its unit.
CHAINS = {
    ("TPC-H", "customer"): [("lineitem", ("l_orderkey", "orders", "o_orderkey"), "o_custkey")],
}


def list_paths(name: str, unit: str) -> list[tuple[str, list[tuple[str, ...]], str]]:
    """The unit as Qrlew names it."""
    direct = [(table, [], column) for table, column in UNITS[name][unit].items()]
    chained = [(table, [step], column) for table, step, column in CHAINS.get((name, unit), [])]
    return [*direct, *chained]
