"""Quantities, compared with exact fractions and with the output of Kubernetes."""

from __future__ import annotations

import pickle
import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kedge.api import quantity as quantity_module
from kedge.api.quantity import NANO, QUANTITY_MAX, ZERO, Quantity, format_units, parse_quantity, sum_quantities, units

_SCALES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60), "e3": Fraction(1000), "E-2": Fraction(1, 100), "e+1": Fraction(10),
}  # fmt: skip

numbers = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}{fraction}",
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**15).map(str),
    st.one_of(st.just(""), st.just("."), st.integers(0, 10**12).map(lambda n: f".{n:013}")),
)
quantities = st.builds(
    Quantity, st.integers(-(10**24), 10**24), st.sampled_from(["DecimalSI", "BinarySI", "DecimalExponent"])
)


def away_from_zero(value: Fraction) -> int:
    return -(-value.numerator // value.denominator) if value >= 0 else value.numerator // value.denominator


@given(numbers, st.sampled_from(sorted(_SCALES)))
@example("0.0000000001", "")
@example("9223372036854775807", "Ei")
@example(".5", "m")
def test_a_quantity_is_its_fraction_rounded_up_at_a_nano_and_capped(number: str, suffix: str) -> None:
    if number in ("", "+", "-"):
        return
    exact = Fraction(number.rstrip(".") if not number.startswith(".") else f"0{number}") * _SCALES[suffix]
    expected = max(-QUANTITY_MAX, min(away_from_zero(exact * NANO), QUANTITY_MAX))
    assert parse_quantity(number + suffix).nano == expected


@given(quantities)
def test_the_canonical_form_reads_back_as_the_same_amount(quantity: Quantity) -> None:
    if abs(quantity.nano) <= QUANTITY_MAX:
        again = parse_quantity(str(quantity))
        assert again == quantity
        assert str(again) == str(quantity)


@given(quantities, quantities)
def test_arithmetic_and_order_are_those_of_the_amounts(a: Quantity, b: Quantity) -> None:
    assert (a + b).nano == a.nano + b.nano
    assert (a - b).nano == a.nano - b.nano
    assert (-a).nano == -a.nano
    assert (a < b, a <= b, a > b, a >= b, a == b) == (
        a.nano < b.nano, a.nano <= b.nano, a.nano > b.nano, a.nano >= b.nano, a.nano == b.nano,
    )  # fmt: skip
    assert a != b or hash(a) == hash(b)
    assert sum_quantities([a, b]) == a + b


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("0", "0"), ("0Gi", "0"), ("1024", "1024"), ("1024Ki", "1Mi"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"),
        ("0.5", "500m"), ("1000", "1k"), ("1500", "1500"), ("1000m", "1"), ("100m", "100m"), ("1e3", "1e3"),
        ("1E3", "1e3"), ("1000000e-3", "1e3"), ("1E", "1E"), ("12.5Ki", "12800"), ("0.5Ki", "512"), ("1023", "1023"),
        ("0.1Gi", "107374182400m"), ("-1.5", "-1500m"), ("+5", "5"), ("5.", "5"), (".5", "500m"),
        ("1n", "1n"), ("0.1n", "1n"), ("100Ei", "9223372036854775807"), ("1e100", "9223372036854775807"),
        ("1e99999999999", "9223372036854775807"), ("1e-99999999999", "1e-9"), (" 1 ", "1"),
    ],
)  # fmt: skip
def test_quantities_are_written_as_kubernetes_writes_them(written: str, canonical: str) -> None:
    assert str(parse_quantity(written)) == canonical


@pytest.mark.parametrize(
    "text",
    ["", ".", "+", "-", "Ki", "1.2.3", "1ki", "1KI", "1e", "1 Gi", "1GiB", "--1", "0x10", "1e3.5", "1m5", "٣", "1K",
     "∞", "nan", "inf", "9" * 2000],
)  # fmt: skip
def test_a_malformed_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="quantit"):
        parse_quantity(text)


@pytest.mark.parametrize("value", [None, True, [], {}, object()])
def test_only_texts_and_numbers_are_quantities(value: object) -> None:
    with pytest.raises(ValueError, match="must be a quantity"):
        parse_quantity(value)


def test_bare_numbers_are_quantities() -> None:
    assert parse_quantity(2) == parse_quantity("2")
    assert str(parse_quantity(0.5)) == "500m"
    assert parse_quantity(parse_quantity("1Gi")) == parse_quantity("1Gi")


def test_a_quantity_cannot_be_changed_and_survives_pickling() -> None:
    quantity = parse_quantity("1Gi")
    with pytest.raises(AttributeError):
        quantity.nano = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del quantity.nano
    again = pickle.loads(pickle.dumps(quantity))
    assert (again, again.format) == (quantity, "BinarySI")
    assert not ZERO
    assert quantity


@given(quantities, st.sampled_from(["cpu", "requests.cpu", "memory", "pods", "example.com/gpu", "limits.memory"]))
def test_units_round_away_from_zero_in_the_unit_of_the_resource(quantity: Quantity, resource: str) -> None:
    scale = 1000 if resource.endswith("cpu") else 1
    assert units(resource, quantity) == away_from_zero(Fraction(quantity.nano, NANO) * scale)


def test_a_count_of_units_fits_64_bits() -> None:
    assert units("cpu", parse_quantity("9223372036854775807")) == 2**63 - 1
    assert units("cpu", parse_quantity("-1E3")) == -(10**6)
    assert units("cpu", parse_quantity("-9E")) == -(2**63 - 1)
    assert units("memory", parse_quantity("100Ei")) == 2**63 - 1


@given(st.integers(0, 2**60), st.sampled_from(["cpu", "memory", "pods", "example.com/gpu", "hugepages-2Mi"]))
def test_units_that_are_written_read_back_as_the_same_count(amount: int, resource: str) -> None:
    assert units(resource, parse_quantity(format_units(resource, amount))) == amount


def test_units_are_written_in_the_style_of_their_resource() -> None:
    assert format_units("cpu", 1500) == "1500m"
    assert format_units("cpu", 2000) == "2"
    assert format_units("memory", 2**30) == "1Gi"
    assert format_units("requests.memory", 2**20) == "1Mi"
    assert format_units("pods", 110) == "110"


_BACKTRACKING = re.compile(r"([+-]?)(\d+)?(?:\.(\d*))?([A-Za-z]*)([+-]?\d+)?", re.ASCII)
"""The form of a quantity, written without possessive repetitions. It takes quadratic time."""


@given(st.text("+-.019eEkKMGinmu ", max_size=24) | st.text(max_size=8))
@example("12+3")
@example("1.e-3")
@example("+.5")
@example("1.2.3")
@example("١")
def test_a_text_is_split_as_by_a_backtracking_expression(text: str) -> None:
    wanted, found = _BACKTRACKING.fullmatch(text), quantity_module._TEXT.fullmatch(text)
    assert (found and found.groups()) == (wanted and wanted.groups())
