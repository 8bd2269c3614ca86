"""The worker: performs one tool that lives outside the server, by long poll. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from tests.chaos.service.bank import SETTLE_S
from tests.chaos.service.fate import Fate
from tests.chaos.service.speech import PAUSE_S, Speaker

TAKE_S: Final = 1.0


def declared(name: str, lease_s: float) -> dict[str, Any]:
    """Return the declaration of the tool."""
    parameters = {
        "type": "object",
        "properties": {"order": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["order", "cents"],
    }
    return {
        "name": name, "parameters": parameters, "key": ["order"], "lease": lease_s, "settle": SETTLE_S, "attempts": 5,
        "probe": True, "compensate": {"idempotent": True, "attempts": 5},
    }  # fmt: skip


class Worker:
    """Takes work, does it at the bank, and reports."""

    def __init__(self, said: dict[str, Any], fate: Fate) -> None:
        self.said, self.fate = said, fate
        self.server = Speaker(said["server"], fate, token=said["token"])
        self.bank = Speaker(said["bank"], fate)

    def work(self) -> None:
        """Work until killed."""
        id = self.register()
        while True:
            self.fate.passing("before take")
            begun = time.monotonic()
            try:
                status, answer = self.server.once("take", f"/v1/workers/{id}/take", {"wait": TAKE_S})
            except Exception:  # the server is away
                time.sleep(PAUSE_S)
                continue
            if status == 404:
                id = self.register()
            elif status == 200 and answer["work"] is not None:
                self.fate.passing("after take")
                self.perform(answer["work"], begun)
            elif status != 200:
                time.sleep(PAUSE_S)

    def register(self) -> str:
        """Say which tool is performed here, as often as the server forgets it."""
        body = {"name": "teller", "tools": [declared(self.said["book"], self.said["work_lease"])]}
        status, made = self.server.ask("register", "/v1/workers", body)
        assert status == 201, made
        return str(made["id"])

    def perform(self, work: dict[str, Any], begun: float) -> None:
        """Do one piece of work, unless its lease is over before it began."""
        phase, order = work["phase"], work["args"]["order"]
        said = {"order": order, "tool": "book", "key": work["key"], "sent": time.time()}
        self.fate.passing(f"before {phase} effect")
        if time.monotonic() - begun > work["lease"] * 0.9:  # counted from before it was asked for
            return
        what = {"execute": "do", "compensate": "undo", "probe": "find"}[phase]
        status, row = self.bank.once(f"{phase} effect", f"/{what}", said)
        self.fate.passing(f"after {phase} effect")
        result: Any = row.get("id")
        if phase == "probe":
            result = {"answer": "happened", "result": row["id"]} if row["found"] else {"answer": "absent"}
        verb, body = (
            ("succeed", {"result": result}) if status == 200 else ("fail", {"error": "late", "no_effect": True})
        )
        self.server.ask(f"{phase} report", f"/v1/claims/{work['call']}/{verb}", {"token": work["token"], **body})


def main() -> None:
    """Work as the argument describes."""
    Worker(json.loads(sys.argv[1]), Fate.of("worker")).work()


if __name__ == "__main__":
    main()
