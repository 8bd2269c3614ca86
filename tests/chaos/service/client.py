"""The client: drives one saga over HTTP, and makes two of its calls itself. Standard library only.

It has no memory: started again, it sends the same requests. Its exit code says how the run looked to it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from tests.chaos.service.fate import Fate
from tests.chaos.service.speech import GaveUp, Speaker

DONE, DOUBT, ENDED, FAILED, REFUSED = 0, 3, 4, 5, 6
"""``REFUSED``: the client's own effect was too late for the bank or for its lease, on a machine that is very slow."""
DOUBT_S_MAX: Final = 15.0
"""How long to ask again about a call in doubt; then a person is needed."""
DOUBTS: Final = ("InDoubt", "DoubtOpen", "Blocked")


class Over(Exception):
    """The saga goes no further, with an exit code."""

    def __init__(self, code: int, why: object) -> None:
        super().__init__(str(why))
        self.code = code


class Saga:
    """open; charge (the server's); pay (own); book (a worker's); wire (own, a pivot); commit. Or it is rolled back."""

    def __init__(self, said: dict[str, Any], fate: Fate) -> None:
        self.said, self.fate = said, fate
        self.run = said["run"]
        self.args = {"order": self.run, "cents": 5}
        self.server = Speaker(said["server"], fate, token=said["token"])
        self.bank = Speaker(said["bank"], fate)

    def play(self) -> None:
        """Do all of it, as if for the first time."""
        body = {"id": self.run, "input": self.args, "client_lease": self.said["client_lease"], "wait": 5.0}
        opened = self.ask("open", "/v1/runs", body | {"if_rolled_back": "raise"})
        if opened["over"]:
            raise Over(DONE, opened["state"])
        self.call("charge", "charge")
        self.claim("pay", {})
        self.call("book", self.said["book"])
        if self.said["ending"] == "commit":
            self.claim("wire", {"kind": "pivot"})
            self.ask("commit", f"/v1/runs/{self.run}/commit")
        else:
            self.ask("rollback", f"/v1/runs/{self.run}/rollback", {"why": "the customer changed their mind"})

    def ask(self, step: str, path: str, body: Any = None) -> Any:
        """Return what was answered; a doubt is asked about again, for a while."""
        until = time.monotonic() + DOUBT_S_MAX
        while True:
            status, answer = self.server.ask(step, path, body)
            if status in (200, 201, 202):
                return answer
            if answer.get("code") == "RunEnded":
                raise Over(ENDED, answer)
            if answer.get("code") not in DOUBTS:
                raise Over(FAILED, f"{step}: {status} {answer}")
            if time.monotonic() > until:
                raise Over(DOUBT, answer)
            time.sleep(0.3)

    def call(self, step: str, tool: str) -> None:
        """Have the server do it, or a worker."""
        until = time.monotonic() + DOUBT_S_MAX
        while True:
            answer = self.ask(step, f"/v1/runs/{self.run}/calls", {"tool": tool, "args": self.args})
            if answer["status"] in ("done", "replayed"):
                return
            if answer["status"] != "in_doubt":
                raise Over(FAILED, answer)
            if time.monotonic() > until:
                raise Over(DOUBT, answer)
            time.sleep(0.3)

    def claim(self, tool: str, more: dict[str, Any]) -> None:
        """Do it here: under a lease, and once for each claim."""
        lease_s = self.said["claim_lease"]
        begun = time.monotonic()
        claim = self.ask(f"{tool} claim", f"/v1/runs/{self.run}/claims",
                         {"tool": tool, "args": self.args, "lease": lease_s, **more})  # fmt: skip
        if claim["replayed"]:
            return
        at, token = f"/v1/claims/{claim['call']}", claim["token"]
        if time.monotonic() - begun > lease_s / 2:  # it counts from before it was asked for: begin a new one
            begun = time.monotonic()
            status, answer = self.server.ask(f"{tool} renewal", f"{at}/renew", {"token": token})
            if status != 200:
                raise Over(REFUSED if answer.get("code") == "LeaseLost" else FAILED, answer)
        self.fate.passing(f"before {tool} effect")
        if time.monotonic() - begun > lease_s * 0.9:
            self.ask(f"{tool} report", f"{at}/fail", {"token": token, "error": "the lease was over", "no_effect": True})
            raise Over(REFUSED, "the lease was over before the effect")
        sent = {"order": self.run, "tool": tool, "key": claim["key"], "sent": time.time()}
        status, row = self.bank.once(f"{tool} effect", "/do", sent)  # never twice: this bank does not deduplicate
        self.fate.passing(f"after {tool} effect")
        if status != 200:
            self.ask(f"{tool} report", f"{at}/fail", {"token": token, "error": "the bank refused", "no_effect": True})
            raise Over(REFUSED, "the bank refused")
        self.ask(f"{tool} report", f"{at}/succeed", {"token": token, "result": row["id"]})


def main() -> int:
    """Play the saga that the argument describes."""
    said = json.loads(sys.argv[1])
    try:
        Saga(said, Fate.of("client")).play()
    except Over as over:
        print(over, file=sys.stderr)
        return over.code
    except GaveUp as error:
        print(error, file=sys.stderr)
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main())
