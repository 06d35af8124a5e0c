"""Classes that are mixed in before a user's own class."""

from __future__ import annotations

from typing import Any

# The base of such a class: nothing at run time. To who checks types it is the user's class, which has any attribute.
Wrapped: Any = object
