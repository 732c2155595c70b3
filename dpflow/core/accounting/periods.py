"""Periods of a quota that refreshes: a day, an ISO week or a month, all in UTC.

A refreshing quota has one account for each period and block. Each account only grows, and holds at most the
quota; a new period is a new account. The scope above has no periods: its sums are what privacy rests on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Literal, TypeVar, get_args

Period = Literal["day", "week", "month"]
PERIODS: tuple[Period, ...] = get_args(Period)
T = TypeVar("T")


def name_period(period: Period, day: dt.date) -> str:
    """The period that a day is in: 2026-11-23, 2026-W48 or 2026-11."""
    if period == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}"
    return day.isoformat() if period == "day" else day.isoformat()[:7]


def next_start(period: Period, day: dt.date) -> dt.date:
    """The first day of the period after the one that a day is in."""
    if period == "week":
        return day + dt.timedelta(days=8 - day.isoweekday())
    if period == "day":
        return day + dt.timedelta(days=1)
    return (day.replace(day=1) + dt.timedelta(days=31)).replace(day=1)


def name_account(period: Period | None, block: str, day: dt.date) -> str:
    """What the account of a block is called: as the block, or in a refreshing quota as the period, with the
    block behind a slash if there is one. Names of one kind of period have one length, so no two are equal.
    """
    if period is None:
        return block
    return "/".join(filter(None, (name_period(period, day), block)))


def strip_period(period: Period | None, account: str) -> str:
    """The block of an account."""
    return account if period is None else account[len(name_period(period, dt.date.min)) + 1 :]


def select_current(
    period: Period | None, accounts: Iterable[tuple[str, T]], day: dt.date
) -> list[tuple[str, T]]:
    """Of accounts by name those of a day's period, by block; all of them where nothing refreshes."""
    if period is None:
        return list(accounts)
    name = name_period(period, day)
    return [
        (account[len(name) + 1 :], amount)
        for account, amount in accounts
        if account[: len(name)] == name
    ]
