from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from dpflow.core.accounting.amounts import (
    AS_WRITTEN,
    Delta,
    Epsilon,
    check_delta,
    check_epsilon,
    check_rho,
    exact_text,
    parse_exact,
    short_text,
    to_units_down,
    to_units_up,
)
from dpflow.core.accounting.events import Approximate
from dpflow.core.accounting.privacy_filters import Cost, Filter, make_filter
from dpflow.errors import InvalidAmount

TENTH = Fraction(1, 10)


class Params(BaseModel):
    epsilon: Epsilon
    delta: Delta = Fraction(0)


@pytest.mark.parametrize(
    "value", ["0.1", "1e-1", "1/10", " .1 ", 0.1, np.float64(0.1), Decimal("0.1"), TENTH, "+0.10"]
)
def test_every_way_to_write_a_tenth_is_exactly_a_tenth(value: object) -> None:
    """A float is taken by its shortest decimal form, so that 0.1 means one tenth."""
    assert check_epsilon(value) == TENTH


@pytest.mark.parametrize(
    "value",
    [
        "0",
        0,
        -1,
        "-0.1",
        "nan",
        float("nan"),
        "inf",
        float("inf"),
        Decimal("NaN"),
        Decimal("sNaN"),
        1e308,
        "1e-400",
    ]
    + [
        5e-324,
        "1e400000000",
        "1e-999999999",
        10**200,
        "9" * 500,
        True,
        None,
        [],
        "",
        "one",
        "1/0",
        "0x10",
        "1_0",
    ]
    + ["١", np.bool_(True), "9e-13", "1000001", Fraction(1, 3**400), 1j, "1 / 3"],
)
def test_an_illegal_epsilon_is_refused_at_once(value: object) -> None:
    """Zero, negative, NaN, infinite, subnormal, huge and astronomically long amounts never become a
    number.
    """
    with pytest.raises(InvalidAmount, match=r"epsilon is .*it must be"):
        check_epsilon(value)


@pytest.mark.parametrize("value", [1, "1", "1.5", -1e-9, "9e-19", float("nan"), False])
def test_an_illegal_delta_is_refused(value: object) -> None:
    """A delta of 1 protects nobody; one below a unit cannot be counted."""
    with pytest.raises(InvalidAmount, match=r"delta is .*it must be"):
        check_delta(value)


def test_the_ends_of_the_legal_ranges_are_legal() -> None:
    """The ranges are closed except for delta = 1."""
    assert check_epsilon("1e-12") == Fraction(1, 10**12) and check_epsilon(10**6) == 10**6
    assert (
        check_delta(0) == 0
        and check_delta("1e-18") == Fraction(1, 10**18)
        and check_delta("0.999") < 1
    )
    assert check_rho("1e-24") == Fraction(1, 10**24)
    with pytest.raises(InvalidAmount, match="rho is 0; it must be from 1e-24 to 1000000"):
        check_rho(0)


def test_a_message_stays_short_whatever_was_asked() -> None:
    """A 10 kB amount does not produce a 10 kB message."""
    for value in ("7" * 10_000, 10**9999, Fraction(1, 7**5000), 10**130):
        with pytest.raises(InvalidAmount, match="finite number of at most 100 digits") as caught:
            parse_exact("epsilon", value)
        assert len(str(caught.value)) < 300


@given(st.fractions(min_value=Fraction(1, 10**12), max_value=10**6, max_denominator=10**30))
def test_text_reads_back_exactly(amount: Fraction) -> None:
    """The written form of an amount loses nothing."""
    assert check_epsilon(exact_text(amount)) == amount


@pytest.mark.parametrize(
    ("written", "shown"),
    [("1/3", "1/3"), ("0.10", "0.1"), ("1e-12", "1e-12"), ("2.5e-9", "2.5e-9"), ("30", "30")],
)
def test_text_is_what_a_person_would_write(written: str, shown: str) -> None:
    """Decimals stay decimals, ratios stay ratios, tiny numbers get an exponent."""
    assert exact_text(parse_exact("x", written)) == shown


def test_show_is_short() -> None:
    """People see six digits at most."""
    assert (
        short_text(Fraction(1, 3)) == "0.333333"
        and short_text(Fraction(0)) == "0"
        and short_text(TENTH) == "0.1"
        and short_text(Fraction(3)) == "3"
    )


def test_units_round_against_the_spender() -> None:
    """A price covers the amount, a capacity does not exceed it."""
    third, unit = Fraction(1, 3), Fraction(1, 10**12)
    assert to_units_up(third, unit) == 333333333334 and to_units_down(third, unit) == 333333333333
    assert to_units_up(TENTH, unit) == to_units_down(TENTH, unit) == 10**11


def test_pydantic_fields_round_trip_exactly() -> None:
    """A parameter model goes to JSON and back without another rounding."""
    params = Params.model_validate({"epsilon": "1/3", "delta": 1e-6})
    assert params.model_dump_json() == '{"epsilon":"0.333333333333","delta":"0.000001"}'
    assert Params.model_validate_json(params.model_dump_json()) == params
    assert Params.model_json_schema()["properties"]["epsilon"]["type"] == "string"


def test_examples_in_schemas_are_whole_units() -> None:
    """What an example says is what is charged: 1/3 is taken to the unit below."""
    schema = Params.model_json_schema()["properties"]
    for name, field in schema.items():
        assert len(field["examples"]) == 2
        for example in field["examples"]:
            amount = parse_exact(name, example)
            assert (
                Params.model_validate({"epsilon": 1, "delta": 0, name: example}).__dict__[name]
                == amount
            )


@pytest.mark.parametrize("parts", [3, 7, 9, 365])
def test_parts_of_a_grant_fit_into_it(parts: int) -> None:
    """What a release asks for is taken to the unit below: n times 1/n is never above 1."""
    params = Params.model_validate({"epsilon": f"1/{parts}", "delta": f"1/{2 * parts}"})
    grant = make_filter("basic", Fraction(1), Fraction(1, 2))
    cost = grant.event_cost(Approximate(params.epsilon, params.delta))
    total = sum([cost] * parts, Cost())
    assert total.epsilon == parts * (10**12 // parts) and Filter.admits(grant.capacity(), total)
    assert not Filter.admits(grant.capacity(), total + cost)
    written = Params.model_validate({"epsilon": f"1/{parts}", "delta": 0}, context=AS_WRITTEN)
    assert written.epsilon == Fraction(1, parts)


@pytest.mark.parametrize("value", ["nan", 0, -1, True, "1e-400", None])
def test_a_bad_amount_in_a_model_is_an_invalid_amount_that_names_the_field(value: object) -> None:
    """InvalidAmount leaves pydantic as is, so that no caller can mistake it for something else."""
    with pytest.raises(InvalidAmount, match="^epsilon: epsilon is"):
        Params.model_validate({"epsilon": value})
