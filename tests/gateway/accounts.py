"""The real servers that need an account, started with a token that is none.

``python -m tests.gateway.accounts`` asks each of them for its tools and writes the lists to ``listed/NAME.json``: names and
schemas of arguments, without the texts, with package, version and date. ``test_accounts.py`` compares the catalogue with
these lists, and the lists with the servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tests.gateway.desk import unavailable
from tests.servers.found import Unavailable
from tests.servers.packages import npm_folder

SOURCE = Path(__file__).with_name("npm_accounts")
LISTED = Path(__file__).with_name("listed")
LOOPBACK = Path(__file__).with_name("loopback.cjs")
TEXTS = ("description", "title", "$schema", "examples")
"""Words of a schema that only people read."""


@dataclass(frozen=True)
class Account:
    """How one server is started."""

    package: str
    program: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    """Variables that name a file, with what the file has."""

    @property
    def version(self) -> str:
        """The version that is installed."""
        pinned: dict[str, str] = json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))["dependencies"]
        return pinned[self.package]

    def command(self) -> list[str]:
        """Return the command; skip the test (in CI: fail) where the package cannot be had."""
        try:
            folder = npm_folder(SOURCE, name="mcp-account-servers")
        except Unavailable as refusal:
            unavailable(str(refusal))
        return ["node", str(folder / "node_modules" / ".bin" / self.program), *self.args]

    def environment(self, folder: Path, *, api: str = "") -> dict[str, str]:
        """Return the variables; with ``api``, whatever the server sends to a host goes to this address."""
        made = {"PATH": os.environ["PATH"], "HOME": str(folder), **self.env}
        for name, value in self.files.items():
            path = folder / f"{name.lower()}.json"
            path.write_text(json.dumps(value))
            made[name] = str(path)
        return {**made, "NODE_OPTIONS": f"--require={LOOPBACK}", "STAND_IN_API": api or "http://127.0.0.1:9"}


LATE_MS = 32_503_680_000_000
GOOGLE_KEYS = {"installed": {"client_id": "x", "client_secret": "y", "redirect_uris": ["http://localhost:3000"]}}
GOOGLE_TOKEN = {"access_token": "x", "refresh_token": "y", "token_type": "Bearer", "expiry_date": LATE_MS}
ACCOUNTS = {
    "github": Account(
        "@modelcontextprotocol/server-github", "mcp-server-github", env={"GITHUB_PERSONAL_ACCESS_TOKEN": "token-of-nobody"}
    ),
    "gmail": Account(
        "@gongrzhe/server-gmail-autoauth-mcp", "gmail-mcp",
        files={"GMAIL_OAUTH_PATH": GOOGLE_KEYS, "GMAIL_CREDENTIALS_PATH": GOOGLE_TOKEN},
    ),
    "google-calendar": Account(
        "@cocal/google-calendar-mcp", "google-calendar-mcp",
        files={"GOOGLE_OAUTH_CREDENTIALS": GOOGLE_KEYS, "GOOGLE_CALENDAR_MCP_TOKEN_PATH": {"normal": GOOGLE_TOKEN}},
    ),
    "linear": Account("@tacticlaunch/mcp-linear", "mcp-linear", env={"LINEAR_API_TOKEN": "lin_api_of_nobody"}),
    "notion": Account("@notionhq/notion-mcp-server", "notion-mcp-server", env={"NOTION_TOKEN": "ntn_of_nobody"}),
    "slack": Account(
        "@modelcontextprotocol/server-slack", "mcp-server-slack",
        env={"SLACK_BOT_TOKEN": "xoxb-of-nobody", "SLACK_TEAM_ID": "T1"},
    ),
    "stripe": Account("@stripe/mcp", "mcp", args=("--tools=all", "--api-key=sk_test_of_nobody")),
}  # fmt: skip
"""By entry of the catalogue."""


def listed(name: str) -> dict[str, Any]:
    """Return the recorded list of a server: ``package``, ``version``, ``listed`` and ``tools`` (schemas by name)."""
    found: dict[str, Any] = json.loads((LISTED / f"{name}.json").read_text(encoding="utf-8"))
    return found


async def tools_of(account: Account, folder: Path) -> dict[str, Any]:
    """Start the real server, and return the schemas of its tools by name."""
    command = account.command()
    started = StdioServerParameters(command=command[0], args=command[1:], env=account.environment(folder))
    async with Client(started, read_timeout_seconds=60) as client:
        found: dict[str, Any] = {}
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            found |= {tool.name: _bare(tool.input_schema) for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None:
                return dict(sorted(found.items()))


def _bare(schema: Any, *, is_names: bool = False) -> Any:
    """Return a schema without its texts; the keys of ``properties`` are names and stay."""
    if isinstance(schema, dict):
        return {
            name: _bare(one, is_names=name in ("properties", "$defs", "definitions") and not is_names)
            for name, one in schema.items()
            if is_names or name not in TEXTS
        }
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def main(names: list[str]) -> None:
    """Write the lists."""
    LISTED.mkdir(exist_ok=True)
    for name in names or sorted(ACCOUNTS):
        account = ACCOUNTS[name]
        with tempfile.TemporaryDirectory() as folder:
            tools = asyncio.run(tools_of(account, Path(folder)))
        said = {"package": account.package, "version": account.version, "listed": datetime.now(UTC).date().isoformat()}
        lines = [f"  {json.dumps(tool)}: {json.dumps(schema, sort_keys=True)}" for tool, schema in tools.items()]
        head = [f"{json.dumps(word)}: {json.dumps(value)}," for word, value in said.items()]
        text = "\n".join(["{", *head, '"tools": {', ",\n".join(lines), "}}", ""])
        (LISTED / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(tools)} tools of {account.package} {account.version}")


if __name__ == "__main__":
    main(sys.argv[1:])
