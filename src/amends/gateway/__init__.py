"""An MCP gateway: any MCP server behind it becomes recorded, once-only and undoable, without a line of code.

``amends gateway --config amends.toml`` starts it. ``Gateway`` is the same for a program.
"""

from amends.gateway.config import Config, load
from amends.gateway.gateway import Gateway

__all__ = ["Config", "Gateway", "load"]
