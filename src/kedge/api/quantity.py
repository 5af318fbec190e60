"""Kubernetes quantities, exactly: parse, compare, add, and format in canonical form.

`views` decodes resource lists into these; `placement` counts in the whole units of `units`. Nothing here
uses floats: a quantity is an integer count of nano units, as fine as Kubernetes goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final, Literal, NoReturn

from kedge.caches import remembered, weighed

Format = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

NANO = 10**9
QUANTITY_MAX = (2**63 - 1) * NANO
"""The largest quantity that Kubernetes represents."""

UNITS_MAX = 2**63 - 1

_TEXT = re.compile(r"([+-]?)(\d++)?(?:\.(\d*+))?([A-Za-z]*+)([+-]?\d++)?", re.ASCII)
"""Possessive, so that a text which does not match is refused in linear time: digits may stand in three places."""
_DECIMAL_SUFFIXES = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY_SUFFIXES = {0: "", 10: "Ki", 20: "Mi", 30: "Gi", 40: "Ti", 50: "Pi", 60: "Ei"}
_SCALES: dict[str, tuple[int, int, Format]] = {
    **{suffix: (10, power, "DecimalSI") for power, suffix in _DECIMAL_SUFFIXES.items()},
    **{suffix: (2, power, "BinarySI") for power, suffix in _BINARY_SUFFIXES.items() if suffix},
}
_EXPONENT_MAX = 60
"""Past it a number is over the cap or under a nano for any digits: the power is not computed."""
_TEXT_LENGTH_MAX = 1_000


class Quantity:
    """An amount of a resource. Compared by amount alone; `format` is only the suffix family.

    Not a dataclass: msgspec would decode those from JSON objects, and a quantity is a string or a number.
    """

    __slots__ = ("format", "nano")

    nano: Final[int]  # type: ignore[misc]
    format: Final[Format]  # type: ignore[misc]

    def __init__(self, nano: int, format: Format = "DecimalSI") -> None:  # noqa: A002 - Kubernetes' word
        object.__setattr__(self, "nano", nano)
        object.__setattr__(self, "format", format)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a quantity cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a quantity cannot be changed: {name}")

    def __reduce__(self) -> tuple[type[Quantity], tuple[int, Format]]:
        return Quantity, (self.nano, self.format)

    def __repr__(self) -> str:
        return f"Quantity({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Quantity) -> bool:
        return self.nano <= other.nano

    def __gt__(self, other: Quantity) -> bool:
        return self.nano > other.nano

    def __ge__(self, other: Quantity) -> bool:
        return self.nano >= other.nano

    def __bool__(self) -> bool:
        return self.nano != 0

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nano, self.format)

    @property
    def value(self) -> int:
        """Whole units, rounded away from zero."""
        return _divide_away(self.nano, NANO)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divide_away(self.nano, NANO // 1000)

    def __str__(self) -> str:
        """The canonical form: no fraction, the largest suffix that keeps it exact."""
        if self.nano == 0:
            return "0"
        if self.format == "BinarySI" and abs(self.nano) >= 1024 * NANO and self.nano % NANO == 0:
            number, power = _shift_out(self.nano // NANO, 1024, 6)
            return f"{number}{_BINARY_SUFFIXES[power * 10]}"
        number, power = _shift_out(self.nano, 1000, 9)
        exponent = power * 3 - 9
        if self.format == "DecimalExponent":
            return f"{number}e{exponent}" if exponent else str(number)
        return f"{number}{_DECIMAL_SUFFIXES[exponent]}"


ZERO = Quantity(0)


def parse_quantity(value: object) -> Quantity:
    """Parse a quantity of a manifest: a string, or a bare JSON number.

    Raises:
        ValueError: malformed. The message is Kubernetes' own, for a field error.
    """
    if type(value) is str:
        return _parse(value)
    if isinstance(value, Quantity):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _parse(str(value))
    raise ValueError("must be a quantity, such as 100m or 1Gi")


@remembered(entries=8192, entry_bytes=512)  # a longer text raises, and errors are not kept
def _parse(text: str) -> Quantity:
    match = _TEXT.fullmatch(text.strip(" \t\n\r")) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None or not (match[2] or match[3]):
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    sign, whole, fraction, suffix, exponent = match.groups(default="")
    base, power, form = _scale(suffix, exponent)
    digits = int(whole + fraction or "0")
    if digits == 0:
        return Quantity(0, form)
    if base == 2:
        numerator, denominator = digits * NANO * 2**power, 10 ** len(fraction)
    else:
        power = max(-_TEXT_LENGTH_MAX - _EXPONENT_MAX, min(power, _TEXT_LENGTH_MAX + _EXPONENT_MAX))
        power += 9 - len(fraction)
        numerator, denominator = digits * 10 ** max(power, 0), 10 ** max(-power, 0)
    nano = min(-(-numerator // denominator), QUANTITY_MAX)
    return Quantity(-nano if sign == "-" else nano, form)


def _scale(suffix: str, exponent: str) -> tuple[int, int, Format]:
    if exponent:
        if suffix not in ("e", "E"):
            raise ValueError("unable to parse quantity's suffix")
        return 10, int(exponent), "DecimalExponent"
    try:
        return _SCALES[suffix]
    except KeyError:
        raise ValueError("unable to parse quantity's suffix") from None


def sum_quantities(quantities: Iterable[Quantity]) -> Quantity:
    total = ZERO
    for quantity in quantities:
        total = total + quantity
    return total


# -- whole units, as the scheduler counts ----------------------------------------------------------


def units(resource: str, quantity: Quantity) -> int:
    """`quantity` in the units of its resource: thousandths of a cpu, and whole units of everything else.

    Always fits 64 bits: columns of such counts are summed in NumPy.
    """
    return _units(quantity.nano, _is_cpu(resource))


@remembered(entries=8192, entry_bytes=256)  # two numbers
def _units(nano: int, cpu: bool) -> int:
    count = _divide_away(nano, NANO // 1000 if cpu else NANO)
    return max(-UNITS_MAX, min(count, UNITS_MAX))


@weighed(entries=8192, bytes_max=4 << 20)
def format_units(resource: str, amount: int) -> str:
    """The inverse of `units`, as a canonical quantity."""
    if _is_cpu(resource):
        return str(Quantity(amount * (NANO // 1000)))
    return str(Quantity(amount * NANO, "BinarySI" if _is_bytes(resource) else "DecimalSI"))


_CPU = frozenset({"cpu", "requests.cpu", "limits.cpu"})


def _is_cpu(resource: str) -> bool:
    return resource in _CPU


def _is_bytes(resource: str) -> bool:
    bare = resource.removeprefix("requests.").removeprefix("limits.")
    return bare in ("memory", "storage", "ephemeral-storage") or bare.startswith("hugepages-")


def _divide_away(amount: int, by: int) -> int:
    return -(-amount // by) if amount >= 0 else amount // by


def _shift_out(number: int, factor: int, times_max: int) -> tuple[int, int]:
    """Divide `number` by `factor` while that is exact."""
    times = 0
    while times < times_max and number % factor == 0:
        number //= factor
        times += 1
    return number, times
