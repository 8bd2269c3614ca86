"""What a person's desk asks of the ledger besides ``ledger``: the words over what is left standing."""

from __future__ import annotations

from amends.ledger import StoreOp
from amends.record import dataclass
from amends.rows import CallRow


@dataclass(slots=True)
class AcceptCall(StoreOp[CallRow]):
    """A person's word that an effect stays, or that nobody will know: it is residue, and named for good."""

    call_id: str
    by: str
    why: str
