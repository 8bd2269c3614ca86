"""What the worlds offer, without amends: what can be read before a call, how it is undone, how one learns whether it happened.

Only tools of the worlds are used. The oracle and the peers use these functions too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from proof.destination import DestinationError, World

Args = Mapping[str, Any]


def given(args: Args) -> dict[str, Any]:
    """Return the arguments that were given: the world has its own defaults."""
    return {name: value for name, value in args.items() if value is not None}


# ---- What is there: read by the tools of the world


def _events(world: World) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = world.call("search_calendar_events", {"query": ""})
    except DestinationError:
        return []  # it raises where there are none
    return found


def _event(world: World, event_id: str) -> dict[str, Any]:
    found = [event for event in _events(world) if event["id_"] == event_id]
    if not found:
        raise DestinationError(f"no event {event_id}")
    return found[0]


def _files(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.call("list_files", {})
    return found


def _sent(world: World, args: Args) -> int:
    return _like(
        world.call("get_sent_emails", {}), recipients=args["recipients"], subject=args["subject"], body=args["body"]
    )


def _like(rows: list[dict[str, Any]], **wanted: Any) -> int:
    return sum(all(row.get(name) == value for name, value in wanted.items()) for row in rows)


def _scheduled(world: World, number: int) -> dict[str, Any]:
    for row in world.call("get_scheduled_transactions", {}):
        if row["id"] == number:
            return {name: row[name] for name in ("recipient", "amount", "subject", "date")}
    raise DestinationError(f"no scheduled transaction {number}")


def _is_member(world: World, user: str) -> bool:
    try:
        world.call("read_inbox", {"user": user})
    except DestinationError:
        return False
    return True


def _payments(world: World, args: Args) -> int:
    rows = world.call("get_most_recent_transactions", {"n": 100})
    return _like(rows, **{name: args[name] for name in ("recipient", "amount", "subject", "date")})


def _planned(world: World, args: Args) -> int:
    rows = world.call("get_scheduled_transactions", {})
    return _like(rows, **{name: args[name] for name in ("recipient", "amount", "subject", "date", "recurring")})


def _messages(world: World, place: str, args: Args) -> int:
    tool_name, argument = ("read_inbox", "user") if place == "recipient" else ("read_channel_messages", "channel")
    try:
        rows = world.call(tool_name, {argument: args[place]})
    except DestinationError:
        return 0  # a user who is invited in the same task is not there yet
    return _like(rows, sender="bot", body=args["body"])


SNAPSHOT: Final[dict[str, Callable[[World, Args], Any]]] = {
    "create_calendar_event": lambda world, args: [event["id_"] for event in _events(world)],
    "reschedule_calendar_event": lambda world, args: [
        _event(world, args["event_id"])[name][:16].replace("T", " ") for name in ("start_time", "end_time")
    ],
    "add_calendar_event_participants": lambda world, args: dict(
        Counter(_event(world, args["event_id"])["participants"])
    ),
    "append_to_file": lambda world, args: world.call("get_file_by_id", {"file_id": args["file_id"]})["content"],
    "create_file": lambda world, args: [file["id_"] for file in _files(world)],
    "send_money": _payments,
    "schedule_transaction": _planned,
    "update_scheduled_transaction": lambda world, args: _scheduled(world, args["id"]),
    "update_user_info": lambda world, args: world.call("get_user_info", {}),
    "send_direct_message": lambda world, args: _messages(world, "recipient", args),
    "send_channel_message": lambda world, args: _messages(world, "channel", args),
    "add_user_to_channel": lambda world, args: world.call("get_users_in_channel", {"channel": args["channel"]}).count(
        args["user"]
    ),
}
"""What is read before a call, for its probe and its compensation."""

UNDO: Final[dict[str, Callable[[World, Args, Any, Any], Any]]] = {
    "create_calendar_event": lambda world, args, result, before: world.call(
        "cancel_calendar_event", {"event_id": result["id_"]}
    ),
    "reschedule_calendar_event": lambda world, args, result, before: world.call(
        "reschedule_calendar_event",
        {"event_id": args["event_id"], "new_start_time": before[0], "new_end_time": before[1]},
    ),
    "create_file": lambda world, args, result, before: world.call("delete_file", {"file_id": result["id_"]}),
    "update_scheduled_transaction": lambda world, args, result, before: world.call(
        "update_scheduled_transaction", {"id": args["id"]} | before
    ),
    "update_user_info": lambda world, args, result, before: world.call("update_user_info", before),
    "invite_user_to_slack": lambda world, args, result, before: world.call(
        "remove_user_from_slack", {"user": args["user"]}
    ),
}
"""The compensations."""


def _found_event(world: World, args: Args, before: Any) -> Any:
    for event in _events(world):
        wanted = (args["title"], args["start_time"].replace(" ", "T"), args["end_time"].replace(" ", "T"))
        if (event["title"], event["start_time"][:16], event["end_time"][:16]) == wanted and event["id_"] not in before:
            return event
    return None


def _found_file(world: World, args: Args, before: Any) -> Any:
    for file in _files(world):
        if (file["filename"], file["content"]) == (args["filename"], args["content"]) and file["id_"] not in before:
            return file
    return None


def _appended(world: World, args: Args, before: Any) -> Any:
    file = world.call("get_file_by_id", {"file_id": args["file_id"]})
    return file if file["content"] == before + args["content"] else None


def _invited(world: World, args: Args, before: Any) -> Any:
    event = _event(world, args["event_id"])
    now = Counter(event["participants"])
    return event if all(now[name] > before.get(name, 0) for name in args["participants"]) else None


def _rescheduled(world: World, args: Args, before: Any) -> Any:
    event = _event(world, args["event_id"])
    return event if event["start_time"][:16].replace("T", " ") == args["new_start_time"] else None


def _file_gone(world: World, args: Args, before: Any) -> Any:
    return all(file["id_"] != args["file_id"] for file in _files(world)) or None


def _mail_gone(world: World, args: Args, before: Any) -> Any:
    mails = (
        world.call("get_received_emails", {}) + world.call("get_sent_emails", {}) + world.call("get_draft_emails", {})
    )
    return all(mail["id_"] != args["email_id"] for mail in mails) or None


def _shared(world: World, args: Args, before: Any) -> Any:
    file = world.call("get_file_by_id", {"file_id": args["file_id"]})
    return file if file["shared_with"].get(args["email"]) == args["permission"] else None


def _cancelled(world: World, args: Args, before: Any) -> Any:
    return True if _event(world, args["event_id"])["status"] == "canceled" else None


PROBE: Final[dict[str, Callable[[World, Args, Any], Any]]] = {
    "send_email": lambda world, args, before: _sent(world, args) > 0,
    "delete_email": _mail_gone,
    "create_calendar_event": _found_event,
    "cancel_calendar_event": _cancelled,
    "reschedule_calendar_event": _rescheduled,
    "add_calendar_event_participants": _invited,
    "append_to_file": _appended,
    "create_file": _found_file,
    "delete_file": _file_gone,
    "share_file": _shared,
    "send_money": lambda world, args, before: _payments(world, args) > before,
    "schedule_transaction": lambda world, args, before: _planned(world, args) > before,
    "update_scheduled_transaction": lambda world, args, before: all(
        _scheduled(world, args["id"])[name] == value for name, value in given(args).items() if name in before
    ),
    "update_user_info": lambda world, args, before: all(
        world.call("get_user_info", {})[name] == value for name, value in given(args).items()
    ),
    "add_user_to_channel": lambda world, args, before: SNAPSHOT["add_user_to_channel"](world, args) > before,
    "invite_user_to_slack": lambda world, args, before: _is_member(world, args["user"]),
    "remove_user_from_slack": lambda world, args, before: not _is_member(world, args["user"]),
    "send_direct_message": lambda world, args, before: _messages(world, "recipient", args) > before,
    "send_channel_message": lambda world, args, before: _messages(world, "channel", args) > before,
    "post_webpage": lambda world, args, before: world.call("get_webpage", {"url": args["url"]}) == args["content"],
}
"""Whether a call took effect: its result, or True; None or False if not."""

UNDONE: Final[dict[str, Callable[[World, Args, Any, Any], bool]]] = {
    "create_calendar_event": lambda world, args, result, before: _event(world, result["id_"])["status"] == "canceled",
    "reschedule_calendar_event": lambda world, args, result, before: (
        SNAPSHOT["reschedule_calendar_event"](world, args) == before
    ),
    "create_file": lambda world, args, result, before: bool(_file_gone(world, {"file_id": result["id_"]}, None)),
    "update_scheduled_transaction": lambda world, args, result, before: _scheduled(world, args["id"]) == before,
    "update_user_info": lambda world, args, result, before: world.call("get_user_info", {}) == before,
    "invite_user_to_slack": lambda world, args, result, before: not _is_member(world, args["user"]),
}
"""Whether a compensation took effect."""


# ---- What each tool is

KINDS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    # name: kind, why, further options
    "send_email": ("retriable", "A mail cannot be taken back, so it waits until nothing else can fail. The folder of sent mail answers the probe.", {"key": "recipients", "ignore": "rest"}),
    "delete_email": ("retriable", "No tool takes a mail out of the trash: it waits, too.", {}),
    "create_calendar_event": ("compensatable", "It can be cancelled. What remains: the cancelled event, the invitation and the notice.", {"key": ("title", "start_time", "end_time"), "ignore": ("description",)}),
    "cancel_calendar_event": ("retriable", "No tool confirms a cancelled event again: it waits until the end.", {}),
    "reschedule_calendar_event": ("compensatable", "It is moved back to the times read before. Both notices remain.", {}),
    "add_calendar_event_participants": ("retriable", "No tool removes a participant.", {}),
    "append_to_file": ("retriable", "No tool shortens a file.", {}),
    "create_file": ("compensatable", "It can be deleted.", {"key": "filename"}),
    "delete_file": ("retriable", "A deleted file is gone; one made anew has another id.", {}),
    "share_file": ("retriable", "No tool stops sharing.", {}),
    "reserve_hotel": ("pivot", "No tool cancels a reservation, and none shows it. Making it again sets the same values.", {"idempotent": "put", "locks": lambda call: ["reservation"]}),
    "reserve_restaurant": ("pivot", "As a hotel.", {"idempotent": "put", "locks": lambda call: ["reservation"]}),
    "reserve_car_rental": ("pivot", "As a hotel.", {"idempotent": "put", "locks": lambda call: ["reservation"]}),
    "send_money": ("pivot", "A transfer is final. The list of transactions answers the probe.", {}),
    "schedule_transaction": ("pivot", "No tool removes a scheduled transaction.", {}),
    "update_scheduled_transaction": ("compensatable", "The values read before are set again.", {}),
    "update_password": ("pivot", "Nobody can read the old password, so nobody can set it again. Setting it twice is setting it once.", {"idempotent": "put", "locks": lambda call: ["password"]}),
    "update_user_info": ("compensatable", "The values read before are set again.", {}),
    "add_user_to_channel": ("retriable", "No tool removes a user from one channel.", {}),
    "invite_user_to_slack": ("compensatable", "The user can be removed.", {"key": "user"}),
    "remove_user_from_slack": ("retriable", "An invitation would bring back neither channels nor messages: it waits until the end.", {}),
    "send_direct_message": ("retriable", "A message cannot be taken back.", {"key": "recipient", "ignore": "rest"}),
    "send_channel_message": ("retriable", "A message cannot be taken back.", {"key": "channel", "ignore": "rest"}),
    "post_webpage": ("retriable", "No tool removes a page. Reading the page answers the probe.", {}),
}  # fmt: skip

KINDS_OF: Final[dict[tuple[str, str], tuple[str, str, dict[str, Any]]]] = {
    ("travel", "send_email"): (
        "pivot",
        "This world shows no mail that was sent: nothing can answer a probe. So it is sent once, when all else has succeeded. If its answer is lost, a person looks.",
        {"at": "commit", "key": "recipients", "ignore": "rest"},
    ),
}
"""What a tool is in one suite, where that differs."""


def choice(suite: str, name: str) -> tuple[str, str, dict[str, Any]]:
    """Return kind, reason and options of a tool: whatever is not listed reads."""
    return KINDS_OF.get((suite, name)) or KINDS.get(name) or ("read", "It changes nothing.", {})


def can_be_settled(suite: str, name: str) -> bool:
    """Return whether a lost answer of this tool needs no person: it can be asked about, or made again."""
    kind, _, options = choice(suite, name)
    return kind == "read" or bool(options.get("idempotent")) or (name in PROBE and (suite, name) not in KINDS_OF)


def comes_last(suite: str, name: str) -> bool:
    """Return whether a call is staged: carried out when the run commits."""
    kind, _, options = choice(suite, name)
    return kind == "retriable" or options.get("at") == "commit"


SETTERS: Final = frozenset(
    {
        "reserve_hotel", "reserve_restaurant", "reserve_car_rental", "update_password", "update_scheduled_transaction",
        "update_user_info", "share_file",
    }
)  # fmt: skip
"""Tools that set values: done twice, or where the values are there already, they leave the same world. Only the world is compared."""
