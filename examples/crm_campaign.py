"""A campaign: contacts are tagged, mails are staged, and nothing leaves before a person has agreed to the whole list.

    pip install amends
    python examples/crm_campaign.py

The CRM and the mail server are files in the folder `campaign-data`, beside the ledger.
"""

import json
from pathlib import Path

from amends import Held, Runtime, tool
from amends.errors import Rejected, RolledBack, RunEnded

DATA = Path("campaign-data")
CONTACTS = {"north": ["ann@example.com", "bob@example.com"], "south": ["cem@example.com"]}


# ---- the CRM and the mail server ---------------------------------------------------------------------------------


def tags() -> dict[str, list[str]]:
    path = DATA / "tags.json"
    found: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def set_tags(contact: str, names: list[str]) -> None:
    kept = {**tags(), contact: names}
    (DATA / "tags.json").write_text(json.dumps({one: its for one, its in kept.items() if its}), encoding="utf-8")


def sent() -> list[str]:
    path = DATA / "sent"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


# ---- the tools ---------------------------------------------------------------------------------------------------


@tool(key=["contact", "name"])
def add_tag(contact: str, name: str) -> None:
    set_tags(contact, [*tags().get(contact, []), name])


@add_tag.compensate
def remove_tag(contact: str, name: str) -> None:
    set_tags(contact, [one for one in tags().get(contact, []) if one != name])


# Nobody can take a mail back. `retriable` stages it: it starts after the pivot, until then the run can be taken back.
# The mail server deduplicates by the message's id, so a mail whose answer was lost may be sent again.
@tool(kind="retriable", key=["campaign", "contact"], idempotent=True)
def send_mail(campaign: str, contact: str, subject: str) -> None:
    line = f"{campaign} {contact} {subject}"
    if line not in sent():
        with (DATA / "sent").open("a", encoding="utf-8") as out:
            out.write(f"{line}\n")


@tool(kind="pivot", key="campaign", needs_approval=True, at="commit")
def launch(campaign: str, segment: str, mails: int) -> str:
    """Launch the campaign. A person sees how many mails it is."""
    return f"launched-{campaign}"


# ---- three campaigns ---------------------------------------------------------------------------------------------


def prepare(rt: Runtime, campaign: str, segment: str, subject: str) -> None:
    """Prepare and launch a campaign in one run. Calling it again continues where it stopped."""
    try:
        with rt.run(campaign):
            for contact in CONTACTS[segment]:
                add_tag(contact=contact, name=campaign)
                send_mail(campaign=campaign, contact=contact, subject=subject)
            launch(campaign=campaign, segment=segment, mails=len(CONTACTS[segment]))
    except Held as held:
        print("  waits for a person:", held.call.tool)
    except (Rejected, RolledBack) as no:
        print("  taken back:", type(no).__name__)
    except RunEnded as ended:
        print("  ended before:", ended.state)
    print("  crm:", tags())
    print("  sent:", sent())


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[add_tag, send_mail, launch], principal="campaign-bot") as rt:
        print("1. The campaign is prepared. Two mails are staged, none is sent.")
        prepare(rt, "spring", "north", "Spring sale")
        for approval in rt.approvals("state:pending run:spring"):
            print("  ada sees:", approval.call.tool, dict(approval.call.args))
            rt.approve(approval.id, digest=approval.digest, by="ada", why="the list is right")
        print("2. She agrees; the mails go out. The program runs again: nobody gets a second mail.")
        prepare(rt, "spring", "north", "Spring sale")
        prepare(rt, "spring", "north", "Spring sale")
        print("3. She says no to another one: its tags are removed, its mails are dropped.")
        prepare(rt, "summer", "south", "SUMMER!!!")
        for approval in rt.approvals("state:pending run:summer"):
            rt.reject(approval.id, by="ada", reason="too loud")
        prepare(rt, "summer", "south", "SUMMER!!!")


if __name__ == "__main__":
    main()
