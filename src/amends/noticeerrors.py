"""Errors about telling people, and about the links by which they decide. Import them from ``errors``."""

from __future__ import annotations

from amends.error import Refused, ToolError


class LinkVoid(Refused):
    """A link decides nothing: it is forged, it ran out, or it was made for somebody else (``why``)."""

    default_hint = "decide it with rt.approve or rt.reject, or have a new link made"

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message)
        self.why = why


class NotDelivered(ToolError):
    """A notice could not be sent; ``passing``: asking again soon may help."""

    default_hint = "it is sent again from the ledger; look at who receives it"

    def __init__(self, message: str, *, status: int = 0, passing: bool = True) -> None:
        super().__init__(message)
        self.status, self.passing = status, passing
