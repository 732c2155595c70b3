"""Values that SQL cannot write but files and frames bring: every column type's extremes as raw bytes.

Arrow's C data interface hands DuckDB buffers as they are, so they are built here with ctypes: a
package that builds Arrow arrays would look at the values first. Truth values and codes of an ENUM
come through numpy and pandas, whose arrays DuckDB reads as they are, too.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pytest

# --- Arrow's C data interface --------------------------------------------------------------------


class ArrowSchema(ctypes.Structure):
    """struct ArrowSchema of the interface."""


class ArrowArray(ctypes.Structure):
    """struct ArrowArray of the interface."""


class ArrowStream(ctypes.Structure):
    """struct ArrowArrayStream of the interface."""


_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64
ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", _Int),
    ("n_children", _Int),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowSchema))),
    ("dictionary", ctypes.POINTER(ArrowSchema)),
    ("release", _Pointer),
    ("private_data", _Pointer),
]
ArrowArray._fields_ = [
    *[(name, _Int) for name in ("length", "null_count", "offset", "n_buffers", "n_children")],
    ("buffers", ctypes.POINTER(_Pointer)),
    ("children", ctypes.POINTER(ctypes.POINTER(ArrowArray))),
    ("dictionary", ctypes.POINTER(ArrowArray)),
    ("release", _Pointer),
    ("private_data", _Pointer),
]
ArrowStream._fields_ = [
    (name, _Pointer)
    for name in ("get_schema", "get_next", "get_last_error", "release", "private_data")
]


@dataclass
class Column:
    """An Arrow array: its format, its buffers as bytes (the first says which values are there)."""

    format: str
    length: int
    buffers: Sequence[bytes | None]
    children: Sequence[tuple[str, Column]] = ()
    dictionary: Column | None = None
    extension: tuple[str, str] | None = None


@dataclass
class RawStream:
    """Columns as an object that DuckDB reads once, through `__arrow_c_stream__`."""

    columns: Sequence[tuple[str, Column]]
    _keep: list[Any] = field(default_factory=list)
    _sent: bool = False

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = ArrowStream()
        length = self.columns[0][1].length
        whole = Column("+s", length, [None], self.columns)

        def get_schema(_: int, out: Any) -> int:
            ctypes.memmove(out, ctypes.byref(self._schema("", whole)), ctypes.sizeof(ArrowSchema))
            return 0

        def get_next(_: int, out: Any) -> int:
            array = ArrowArray() if self._sent else self._array(whole)
            self._sent = True
            ctypes.memmove(out, ctypes.byref(array), ctypes.sizeof(ArrowArray))
            return 0

        call = ctypes.CFUNCTYPE(ctypes.c_int, _Pointer, _Pointer)
        stream.get_schema = self._function(call, get_schema)
        stream.get_next = self._function(call, get_next)
        stream.get_last_error = self._function(
            ctypes.CFUNCTYPE(ctypes.c_char_p, _Pointer), lambda _: b""
        )
        stream.release = self._release(ArrowStream)
        self._keep.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [_Pointer, ctypes.c_char_p, _Pointer]
        return new(ctypes.addressof(stream), b"arrow_array_stream", None)

    def _function(self, kind: Any, action: Callable[..., Any]) -> int:
        function = kind(action)
        self._keep.append(function)
        return ctypes.cast(function, _Pointer).value or 0

    def _release(self, kind: Any) -> int:
        def release(address: int) -> None:
            kind.from_address(address).release = None

        return self._function(ctypes.CFUNCTYPE(None, _Pointer), release)

    def _pointers(self, kind: Any, items: Sequence[Any]) -> Any:
        array = (ctypes.POINTER(kind) * max(1, len(items)))(*map(ctypes.pointer, items))
        self._keep += [array, *items]
        return ctypes.cast(array, ctypes.POINTER(ctypes.POINTER(kind)))

    def _schema(self, name: str, column: Column) -> ArrowSchema:
        metadata = None
        if column.extension is not None:
            pairs = dict(zip(("name", "metadata"), column.extension, strict=True))
            parts = [struct.pack("<i", len(pairs))]
            for key, value in pairs.items():
                for text in (f"ARROW:extension:{key}", value):
                    parts.append(struct.pack("<i", len(text)) + text.encode())
            metadata = ctypes.create_string_buffer(b"".join(parts))
            self._keep.append(metadata)
        schema = ArrowSchema(column.format.encode(), name.encode())
        schema.metadata = ctypes.cast(metadata, ctypes.c_char_p) if metadata else None
        schema.flags, schema.n_children = 2, len(column.children)  # 2: values may be missing
        schema.children = self._pointers(
            ArrowSchema, [self._schema(name, child) for name, child in column.children]
        )
        if column.dictionary is not None:
            inner = self._schema("", column.dictionary)
            self._keep.append(inner)
            schema.dictionary = ctypes.pointer(inner)
        schema.release = self._release(ArrowSchema)
        return schema

    def _array(self, column: Column) -> ArrowArray:
        array = ArrowArray(column.length, -1, 0, len(column.buffers), len(column.children))
        held = [
            None if b is None else ctypes.create_string_buffer(b, len(b) + 64)
            for b in column.buffers
        ]
        addresses = [None if b is None else ctypes.addressof(b) for b in held]
        buffers = (_Pointer * max(1, len(addresses)))(*addresses)
        array.buffers = ctypes.cast(buffers, ctypes.POINTER(_Pointer))
        array.children = self._pointers(
            ArrowArray, [self._array(child) for _, child in column.children]
        )
        if column.dictionary is not None:
            inner = self._array(column.dictionary)
            self._keep.append(inner)
            array.dictionary = ctypes.pointer(inner)
        array.release = self._release(ArrowArray)
        self._keep += [*held, buffers, array]
        return array


# --- Columns of raw values -----------------------------------------------------------------------


def valid_bits(present: Sequence[bool]) -> bytes:
    """The buffer that says which values are there."""
    return np.packbits(np.array(present, bool), bitorder="little").tobytes()


def fixed(
    format: str, values: Sequence[bytes | None], extension: tuple[str, str] | None = None
) -> Column:
    """Values of one size; None is missing."""
    size = max(len(value) for value in values if value is not None)
    data = b"".join(value or bytes(size) for value in values)
    bits = valid_bits([value is not None for value in values])
    return Column(format, len(values), [bits, data], extension=extension)


def sized(
    format: str, values: Sequence[bytes | None], extension: tuple[str, str] | None = None
) -> Column:
    """Texts or bytes of any length; None is missing."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)]).astype(np.int32).tobytes()
    bits = valid_bits([value is not None for value in values])
    data = b"".join(value or b"" for value in values)
    return Column(format, len(values), [bits, ends, data], extension=extension)


@dataclass(frozen=True)
class RawType:
    """A column type with values that are plain in it, and with raw ones.

    Attributes:
        name: what tests call it.
        plain: three values that SQL can write, too, as bytes.
        raw: values at and beyond the type's ends, as bytes; None is NULL, for every type.
        load: makes the relation ``source`` of values, as `load_column` does.
        literal: a plain value as conditions write it.
    """

    name: str
    plain: tuple[Any, ...]
    raw: tuple[Any, ...]
    load: Callable[[duckdb.DuckDBPyConnection, Sequence[Any]], None]
    literal: str = ""

    @property
    def values(self) -> tuple[Any, ...]:
        """The plain values, the raw ones and NULL."""
        return (*self.plain, *self.raw, None)


def load_column(connection: duckdb.DuckDBPyConnection, column: Column) -> None:
    """Make the relation ``source`` with the values ``x`` of a column and their numbers ``i``."""
    index = fixed("l", [struct.pack("<q", i) for i in range(column.length)])
    connection.register("stream", RawStream([("i", index), ("x", column)]))
    connection.execute("CREATE TABLE source AS SELECT * FROM stream")
    connection.unregister("stream")


def _load_arrow(build: Callable[[Sequence[Any]], Column]) -> Callable[..., None]:
    return lambda connection, values: load_column(connection, build(values))


def _load_frame(build: Callable[[Sequence[Any]], Any]) -> Callable[..., None]:
    def load(connection: duckdb.DuckDBPyConnection, values: Sequence[Any]) -> None:
        import pandas as pd

        frame = pd.DataFrame({"i": np.arange(len(values)), "x": build(values)})
        connection.register("frame", frame)
        connection.execute("CREATE TABLE source AS SELECT * FROM frame")
        connection.unregister("frame")

    return load


def _numbers(
    name: str,
    format: str,
    code: str,
    plain: Sequence[Any],
    raw: Sequence[Any],
    literal: str = "",
    extension: tuple[str, str] | None = None,
) -> RawType:
    """A type whose values `struct` packs."""

    def pack(value: Any) -> bytes:
        return (
            value
            if isinstance(value, bytes)
            else struct.pack("<" + code, *np.atleast_1d(value).tolist())
        )

    def build(values: Sequence[Any]) -> Column:
        return fixed(
            format, [None if value is None else pack(value) for value in values], extension
        )

    return RawType(name, tuple(plain), tuple(raw), _load_arrow(build), literal)


def _wide(
    name: str,
    format: str,
    plain: Sequence[int],
    raw: Sequence[int],
    size: int = 16,
    literal: str = "",
    extension: tuple[str, str] | None = None,
) -> RawType:
    """A type of integers of so many bytes."""

    def build(values: Sequence[Any]) -> Column:
        packed = [
            None if v is None else (v % 2 ** (8 * size)).to_bytes(size, "little") for v in values
        ]
        return fixed(format, packed, extension)

    return RawType(name, tuple(plain), tuple(raw), _load_arrow(build), literal)


def _sized(
    name: str,
    format: str,
    plain: Sequence[bytes],
    raw: Sequence[bytes],
    literal: str = "",
    extension: tuple[str, str] | None = None,
) -> RawType:
    return RawType(
        name,
        tuple(plain),
        tuple(raw),
        _load_arrow(lambda values: sized(format, values, extension)),
        literal,
    )


def _decimal(width: int, scale: int, bits: int) -> RawType:
    """A DECIMAL whose storage has more room than its digits."""
    most, room = 10**width - 1, 2 ** (min(128, bits) - 1)
    raw = [most, -most, most + 1, -most - 1, room - 1, -room]
    size = 16 if bits == 128 else bits // 8
    # The narrowest come as 32 bits.
    format = f"d:{width},{scale}" + ("" if bits == 128 else f",{max(bits, 32)}")
    one = 10**scale if width > scale else 1
    return _wide(f"DECIMAL({width},{scale})", format, [0, one, 2 * one], raw, max(size, 4), "1")


def _dictionary(values: Sequence[Any]) -> Column:
    """Texts by their number in a dictionary that itself has a missing one; None is that one."""
    known = sorted({value for value in values if value is not None})
    words = sized("u", [*known, None])
    codes = [len(known) if value is None else known.index(value) for value in values]
    return Column("i", len(values), [None, np.array(codes, np.int32).tobytes()], dictionary=words)


def _lists(values: Sequence[Any], nested: bool = False) -> Column:
    inner = [one for value in values for one in value or ()]
    ends = np.cumsum([0, *(len(value or ()) for value in values)]).astype(np.int32).tobytes()
    packed = [] if nested else [None if n is None else struct.pack("<q", n) for n in [*inner, 0]]
    child = _lists([*inner, ()]) if nested else fixed("l", packed)
    bits = valid_bits([value is not None for value in values])
    return Column("+l", len(values), [bits, ends], [("item", child)])


def _structs(values: Sequence[Any]) -> Column:
    dates = [
        None if value is None or value[0] is None else struct.pack("<i", value[0])
        for value in values
    ]
    child = fixed("tdD", [*dates, bytes(4)])
    bits = valid_bits([value is not None for value in values])
    return Column("+s", len(values), [bits], [("day", child)])


def _maps(values: Sequence[Any]) -> Column:
    inner = [one for value in values for one in value or ()]
    ends = np.cumsum([0, *(len(value or ()) for value in values)]).astype(np.int32).tobytes()
    bits = valid_bits([value is not None for value in values])
    keys = sized("u", [*(key for key, _ in inner), b""])
    times = fixed("ttu", [*(struct.pack("<q", time) for _, time in inner), bytes(8)])
    entries = Column("+s", len(inner) + 1, [None], [("key", keys), ("value", times)])
    return Column("+m", len(values), [bits, ends], [("entries", entries)])


def _arrays(values: Sequence[Any]) -> Column:
    flat = [one for value in values for one in value or (None, None)]
    child = fixed("tsu:", [bytes(8) if one is None else struct.pack("<q", one) for one in flat])
    bits = valid_bits([value is not None for value in values])
    return Column("+w:2", len(values), [bits], [("item", child)])


def _truths(values: Sequence[Any]) -> Any:
    """Truth values whose byte is not 0 or 1; None is another such byte, for numpy has no NULL."""
    return np.array([3 if value is None else value for value in values], np.uint8).view(bool)


def _categories(values: Sequence[Any]) -> Any:
    """Codes of two categories; those beyond them are no value of the type, and -1 is NULL."""
    import pandas as pd

    made = pd.Categorical.from_codes(np.zeros(len(values), np.int8), ["a", "b"])
    made._ndarray.flags.writeable = True
    made._ndarray[:] = [-1 if value is None else value for value in values]
    return made


_I32, _I64 = 2**31, 2**63
_DAY = 86_400_000_000
_ENDS = [-_I64, -_I64 + 1, -_I64 + 2, -(2**62), 2**62, _I64 - 2, _I64 - 1]
_OPAQUE = "arrow.opaque"
_TEXTS = [
    b"",
    b"\0",
    b"a\0",
    b"a\0b",
    b"A",
    b"x" * 2**20,
    "\U0010ffff".encode(),
    "e\u0301\u200b\ufeff".encode(),
]
_NANS = [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 2**64 - 1]
_DOUBLES = [0x8000000000000000, 1, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FEFFFFFFFFFFFFF]
_SMALL_NANS = [0x7FC00001, 0xFFC00000, 0x7F800001, 2**32 - 1]
_FLOATS = [0x80000000, 1, 0x7F800000, 0xFF800000, 0x7F7FFFFF]


def _opaque(name: str) -> tuple[str, str]:
    """How Arrow marks a type of DuckDB that it does not have itself."""
    return _OPAQUE, f'{{"type_name":"{name}","vendor_name":"DuckDB"}}'


TYPES: tuple[RawType, ...] = (
    RawType("BOOLEAN", (0, 1, 1), (2, 128, 255), _load_frame(_truths), "TRUE"),
    _numbers("TINYINT", "c", "b", (0, 1, 2), (-128, 127), "1"),
    _numbers("SMALLINT", "s", "h", (0, 1, 2), (-(2**15), 2**15 - 1), "1"),
    _numbers("INTEGER", "i", "i", (0, 1, 2), (-_I32, _I32 - 1), "1"),
    _numbers("BIGINT", "l", "q", (0, 1, 2), (-_I64, -_I64 + 1, _I64 - 1), "1"),
    _numbers("UTINYINT", "C", "B", (0, 1, 2), (255,), "1"),
    _numbers("USMALLINT", "S", "H", (0, 1, 2), (2**16 - 1,), "1"),
    _numbers("UINTEGER", "I", "I", (0, 1, 2), (2**32 - 1,), "1"),
    _numbers("UBIGINT", "L", "Q", (0, 1, 2), (2**63, 2**64 - 1), "1"),
    _wide(
        "HUGEINT",
        "w:16",
        (0, 1, 2),
        (2**127 - 1, -(2**127), -(2**127) + 1),
        literal="1",
        extension=_opaque("hugeint"),
    ),
    _wide(
        "UHUGEINT",
        "w:16",
        (0, 1, 2),
        (2**127, 2**128 - 1),
        literal="1",
        extension=_opaque("uhugeint"),
    ),
    _numbers(
        "FLOAT",
        "f",
        "f",
        (0.0, 1.0, 0.5),
        [struct.pack("<I", n) for n in _SMALL_NANS + _FLOATS],
        "1",
    ),
    _numbers(
        "DOUBLE", "g", "d", (0.0, 1.0, 0.5), [struct.pack("<Q", n) for n in _NANS + _DOUBLES], "1"
    ),
    _decimal(4, 2, 16),
    _decimal(9, 2, 32),
    _decimal(18, 0, 64),
    _decimal(18, 2, 64),
    _decimal(18, 18, 64),
    _decimal(38, 0, 128),
    _decimal(38, 10, 128),
    _decimal(38, 38, 128),
    _numbers(
        "DATE",
        "tdD",
        "i",
        (0, 1, 2),
        (-_I32, -_I32 + 1, -_I32 + 2, _I32 - 2, _I32 - 1),
        "'1970-01-02'",
    ),
    _numbers(
        "TIME",
        "ttu",
        "q",
        (0, 1, 2),
        [*_ENDS, -1, _DAY, _DAY + 1, 25 * _DAY // 24, 10**11 * 100],
        "'00:00:01'",
    ),
    _numbers("TIME_NS", "ttn", "q", (0, 1000, 2000), [*_ENDS, -1, 1000 * _DAY + 1], "'00:00:01'"),
    _numbers(
        "TIMETZ",
        "w:8",
        "Q",
        (57599, 57599 + (1 << 24), 57599 + (2 << 24)),
        [0, 2**64 - 1, 2**63, _DAY << 24, (10**11 << 24) + 2**24 - 1],
        "'00:00:01'",
        _opaque("time_tz"),
    ),
    *(
        _numbers(
            name,
            format,
            "q",
            (0, 10 ** (9 - digits), 2 * 10 ** (9 - digits)),
            [*_ENDS, 2**50 * 1000],
            "'1970-01-01 00:00:01'",
        )
        for name, format, digits in (
            ("TIMESTAMP_S", "tss:", 9),
            ("TIMESTAMP_MS", "tsm:", 6),
            ("TIMESTAMP", "tsu:", 3),
            ("TIMESTAMP_NS", "tsn:", 0),
            ("TIMESTAMPTZ", "tsu:UTC", 3),
            ("TIMESTAMPTZ_NS", "tsn:UTC", 0),
        )
    ),
    _numbers(
        "INTERVAL",
        "tin",
        "iiq",
        [struct.pack("<iiq", 0, n, 0) for n in range(3)],
        [
            struct.pack("<iiq", *ends)
            for ends in ((_I32 - 1, _I32 - 1, _I64 - 1), (-_I32, -_I32, -_I64))
        ],
        "'1 day'",
    ),
    _wide(
        "UUID",
        "w:16",
        (0, 1 << 120, 2 << 120),
        (2**128 - 1, 2**127, 2**127 - 1, 128, 127),
        literal="'00000000-0000-0000-0000-000000000001'",
        extension=("arrow.uuid", ""),
    ),
    _sized("VARCHAR", "u", (b"a", b"b", b"c"), _TEXTS, "'b'"),
    _sized(
        "JSON",
        "u",
        (b"1", b"2", b"3"),
        [b"{{{", b"", b"\0", b'{"a": 1}'],
        "'2'",
        ("arrow.json", ""),
    ),
    RawType("dictionary", (b"a", b"b", b"c"), (b"", b"\0"), _load_arrow(_dictionary), "'b'"),
    RawType("ENUM", (0, 1, 0), (2, 77, 127, -2, -128), _load_frame(_categories), "'b'"),
    _sized("BLOB", "z", (b"a", b"b", b"c"), [b"", b"\0", b"\xff\xfe", b"x" * 5000], "'b'"),
    _sized(
        "BIT",
        "z",
        (b"\0\x01", b"\0\x02", b"\0\x03"),
        [b"", b"\0", b"\x09\xff", b"\x07\x01"],
        "'1'",
        _opaque("bit"),
    ),
    _sized(
        "BIGNUM",
        "z",
        (b"\x80\x00\x01\x01", b"\x80\x00\x01\x02", b"\x80\x00\x01\x03"),
        [b"", b"\0\xff", b"\xff" * 9],
        "1",
        _opaque("bignum"),
    ),
    RawType("LIST", ((0,), (1,), (2,)), ((), (None,), tuple(range(5000))), _load_arrow(_lists)),
    RawType(
        "LIST of LIST",
        (((0,),), ((1,),), ((2,),)),
        ((), ((),), ((None,), ())),
        _load_arrow(partial(_lists, nested=True)),
    ),
    RawType("STRUCT", ((0,), (1,), (2,)), ((None,), (-_I32,), (_I32 - 1,)), _load_arrow(_structs)),
    RawType(
        "MAP",
        (((b"a", 0),), ((b"b", 1),), ((b"c", 2),)),
        ((), ((b"", -_I64),), ((b"\0", _I64 - 1),)),
        _load_arrow(_maps),
    ),
    RawType("ARRAY", ((0, 0), (1, 1), (2, 2)), ((-_I64 + 2, _I64 - 2),), _load_arrow(_arrays)),
)

#: Values that DuckDB refuses where a table is made of them, so that no table has them.
REFUSED: dict[str, Callable[[], Column]] = {
    **{
        f"text {text!r}": (lambda text=text: sized("u", [b"a", text]))
        for text in (
            b"\xff\xfe",
            b"\xc3",
            b"\xed\xa0\x80",
            b"\xf8\x88\x80\x80\x80",
            b"\xf4\x90\x80\x80",
            b"\xc0\x80",
            b"x" * 5000 + b"\xff",
        )
    },
    **{
        f"TIMESTAMPTZ in {unit}": (
            lambda unit=unit: fixed(f"ts{unit}:UTC", [struct.pack("<q", 2**62)])
        )
        for unit in "sm"
    },
    **{
        f"INTERVAL in {unit}": (lambda unit=unit: fixed(f"tD{unit}", [struct.pack("<q", 2**62)]))
        for unit in "sm"
    },
}

#: Types that other rooms leave to `make slow`, for a neighbour is read by the same expressions; tests/tables has all.
NEAR_OTHERS = {
    *("SMALLINT", "INTEGER", "USMALLINT", "UINTEGER", "TIMESTAMP_MS"),
    *("DECIMAL(9,2)", "DECIMAL(18,2)", "DECIMAL(38,10)"),
}


def mark_near(types: Sequence[RawType | str]) -> list[Any]:
    """Parameters of types or their names, slow where one is near another."""
    names = [kind if isinstance(kind, str) else kind.name for kind in types]
    return [
        pytest.param(kind, id=name, marks=pytest.mark.slow if name in NEAR_OTHERS else ())
        for kind, name in zip(types, names, strict=True)
    ]
