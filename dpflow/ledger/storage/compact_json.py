"""JSON as `json.dumps` writes it without spaces, in ASCII, by encoders that are made once: the
standard one is made at each call, which takes longer than what it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import Any


def _make_encoder(*, sort_keys: bool = False, allow_nan: bool = True) -> Callable[[Any], str]:
    # It does not look for circles, and ends in a `RecursionError` there.
    encode = encoder.c_make_encoder(  # type: ignore[attr-defined]
        None, json.JSONEncoder().default, encoder.encode_basestring_ascii, None, ":", ",", sort_keys, False, allow_nan
    )  # fmt: skip
    return lambda value: "".join(encode(value, 0))


encode_json = _make_encoder()
#: Raises `ValueError` for a number that is not finite.
encode_finite = _make_encoder(allow_nan=False)
#: With one spelling for equal values.
canonical_json = _make_encoder(sort_keys=True)
