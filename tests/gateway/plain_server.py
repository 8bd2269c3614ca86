"""A program that answers lines of JSON, to see what reaches it and what becomes of its answers."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def say(**message: Any) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(asked: dict[str, Any]) -> None:
    """Do what the method of a request says."""
    number, params = asked.get("id"), asked.get("params", {})
    match asked["method"]:
        case "echo":
            say(id=number, result={"params": params})
        case "as_text":
            say(id=str(number), result={"params": params})
        case "refuse":
            say(id=number, error={"code": -32602, "message": "no", "data": 7})
        case "progress":
            token = params["_meta"]["progressToken"]
            say(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2})
            say(id=number, result={})
        case "log":
            line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
            said: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "result": {}}
            sys.stdout.write(f"{json.dumps(line)}\n{json.dumps(said)}\n")  # both arrive at once
            sys.stdout.flush()
        case "nonsense":
            say(id=number, result="no table")
            say(id=number, error={"code": "no number"})
            sys.stdout.write("no JSON\n")
            say(id=number, result={"after": "nonsense"})
        case "long":
            sys.stdout.write("x" * params["bytes"])
            sys.stdout.flush()
        case "last_words":
            say(id=number, result={"last": True})
            os._exit(0)
        case "die":
            os._exit(1)
        case "notifications/cancelled":
            say(method="notifications/message", params={"cancelled": params["requestId"], "why": params["reason"]})


for line in sys.stdin:
    answer(json.loads(line))
