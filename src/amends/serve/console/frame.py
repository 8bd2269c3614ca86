"""What belongs to no page: the first address, static files, and logging out."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import RedirectResponse, Response

from amends.serve.console import html, pages
from amends.serve.exchange import Exchange
from amends.serve.problems import NoSuchRoute


async def home(x: Exchange) -> Response:
    """Lead to the runs."""
    return RedirectResponse(f"{x.service.base(x.request)}/runs", 303, headers={"Cache-Control": "no-store"})


async def static(x: Exchange) -> Response:
    """Return a static file; with its mark in the address, a browser keeps it."""
    found = html.files().get(x.path["name"])
    if found is None:
        raise NoSuchRoute("there is no such file")
    is_marked = x.request.query_params.get("v") == found.mark
    kept = "public, max-age=31536000, immutable" if is_marked else "no-cache"
    headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
    return Response(found.data, 200, headers, found.kind)


async def log_out(x: Exchange, _form: Mapping[str, str]) -> Response:
    """End the login in every server, and remove its cookie; lead to the provider if the login was made there."""
    logins = x.service.logins
    if logins is None:
        raise NoSuchRoute("the program that serves this has its own way to log out")
    done = await logins.logout(x.request)
    there = json.loads(bytes(done.body))["provider"]
    answer: Response = RedirectResponse(f"{x.service.base(x.request)}/login?out=1", 303)
    if isinstance(there, str) and there.startswith(("https://", "http://")):
        text = "You have logged out here. Next, log out of your company's login, too."
        answer = pages.leading(x.request, there, title="You have logged out", text=text, label="Log out there")
    answer.raw_headers += [(name, value) for name, value in done.raw_headers if name == b"set-cookie"]
    answer.headers["Cache-Control"] = "no-store"
    return answer
