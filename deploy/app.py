"""The program that deploy/compose.yaml serves: replace its tools by yours. AMENDS_URL names the ledger."""

from amends import Runtime, tool


@tool(key="order")
def charge(order: str, cents: int) -> str:
    """Charge the card of an order."""
    return f"ch_{order}"


@charge.compensate
def refund(order: str) -> None:
    """Refund the charge of an order."""


rt = Runtime(tools=[charge])
