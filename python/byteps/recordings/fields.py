"""Fields of JSON objects that nobody vouches for: texts are made harmless for terminals, and what is of another type
counts as not there."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    return _HARMFUL.sub("?", text)


def text_of(fields: Dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return clean(value) if isinstance(value, str) else ""


def number_of(fields: Dict[str, Any], name: str) -> Optional[int]:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64 else None


def dict_of(fields: Dict[str, Any], name: str) -> Dict[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}
