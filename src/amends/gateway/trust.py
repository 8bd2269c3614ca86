"""What a person has seen of the tools of upstream servers.

A server may change the description of a tool after somebody approved it, so that a model is told something else. The
gateway keeps a digest of all that models are told of each tool, in a file beside the configuration. A tool that has
changed is halted in the ledger until a person has looked at it and lifts the halt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from amends import AsyncRuntime
from amends.errors import BadConfig
from amends.visible import visible, visible_log

log = visible_log("amends.gateway")
BY: Final = "amends gateway"


class Trust:
    """The digests that people know, in a file."""

    def __init__(self, path: Path, rt: AsyncRuntime) -> None:
        self.path, self._rt = path, rt
        self._known: dict[str, dict[str, str]] = self._read()

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BadConfig(f"{self.path} cannot be read: {error}", setting="gateway", origin=str(self.path)) from error
        if not isinstance(found, dict) or not all(
            isinstance(one, dict) and isinstance(one.get("digest"), str) for one in found.values()
        ):
            raise BadConfig(
                f"{self.path} is not a file of the gateway", setting="gateway", origin=str(self.path),
                hint="remove it: all tools are then taken as they are now",
            )  # fmt: skip
        return found

    async def look(self, digests: dict[str, str]) -> list[str]:
        """Compare what servers say now with what is known; halt the tools that have changed, and return their names."""
        # A halt for one agent or tenant holds nothing back from the others.
        halted = {one.tool for one in await self._rt.halts() if one.agent is None and one.tenant is None}
        changed: list[str] = []
        is_new = False
        for name, digest in digests.items():
            is_new |= name not in self._known
            known = self._known.setdefault(name, {"digest": digest})
            if known["digest"] == digest:
                continue
            if known.get("pending") == digest and name not in halted:
                self._known[name] = {"digest": digest}  # a person has lifted the halt
                is_new = True
                continue
            changed.append(name)
            if known.get("pending") != digest or name not in halted:
                known["pending"] = digest
                is_new = True
                if name not in halted:
                    await self._rt.halt(
                        tool=name, by=BY,
                        why="its server describes it differently than before: look at it, then lift this halt",
                    )  # fmt: skip
                log.warning("tool %s is halted: its server describes it differently than before", visible(name))
        if is_new:
            self._write()
        return changed

    def _write(self) -> None:
        text = json.dumps(self._known, indent=1, sort_keys=True) + "\n"
        made = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(self.path)
