"""Whom the loop asks: a recorded client of an SDK, or a script; each request is a call of the current run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from amends import UsageError, current_run
from amends.llm import settling
from amends.llm.asking import Asked, asked_for
from amends.llm.assembling import assembler
from amends.llm.dialects import dialect
from amends.llm.events import events_of
from amends.llm.hearing import heard_in
from amends.llm.prices import Prices
from amends.llm.recording import kind_of, record
from amends.llm.replying import response_of
from amends.llm.scripted import ScriptedModel
from amends.llm.wire import Api

OnText: TypeAlias = Callable[[str], object]
"""Gets what the model says, piece by piece."""
APIS: Final[dict[str, tuple[Api, ...]]] = {
    "openai": ("chat.completions", "responses"),
    "anthropic": ("messages",),
    "scripted": ("chat.completions", "responses", "messages"),
}
"""What each provider speaks, the default first."""
FREE: Final = Prices({"*": (0, 0)}, provider="scripted", url="")


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever answers requests, and in which wire format."""

    api: Api
    given: Any
    """A recorded client, or a ``ScriptedModel``."""

    def ask(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """What the model says; written down before it is sent, and after."""
        if isinstance(self.given, ScriptedModel):
            return self._scripted(request, on_text)
        if on_text is None:
            return _plain(self._create(**request))
        made, speaks = assembler(self.api), dialect(self.api)
        with self._create(**request, stream=True) as stream:
            for event in stream:
                made.see(plain := _plain(event))
                if piece := speaks.delta(plain):
                    on_text(piece)
        return made.response or {}

    async def ask_async(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        """The same, awaited; ``on_text`` may be either."""
        if isinstance(self.given, ScriptedModel):
            return await self._scripted_async(request, on_text)
        if on_text is None:
            return _plain(await self._create(**request))
        made, speaks = assembler(self.api), dialect(self.api)
        async with await self._create(**request, stream=True) as stream:
            async for event in stream:
                made.see(plain := _plain(event))
                if piece := speaks.delta(plain):
                    await _called(on_text, piece)
        return made.response or {}

    @property
    def _create(self) -> Callable[..., Any]:
        found: Any = self.given
        for name in self.api.split("."):
            found = getattr(found, name)
        create: Callable[..., Any] = found.create
        return create

    # ---- a script -------------------------------------------------------------------------

    def _scripted(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        entry = settling.begin(current_run(), self._asked(request))
        if entry.replayed:
            response = _recorded(entry.attempt.result)
        else:
            try:
                response = self._reply(request)
            except BaseException as error:
                settling.fail(entry, error)
                raise
            settling.succeed(entry, response)
        if on_text is not None:
            for piece in self._pieces(response):
                on_text(piece)
        return response

    async def _scripted_async(self, request: Mapping[str, Any], on_text: OnText | None) -> Mapping[str, Any]:
        entry = await settling.begin_async(current_run(), self._asked(request))
        if entry.replayed:
            response = _recorded(entry.attempt.result)
        else:
            try:
                response = self._reply(request)
            except BaseException as error:
                await settling.fail_async(entry, error)
                raise
            await settling.succeed_async(entry, response)
        if on_text is not None:
            for piece in self._pieces(response):
                await _called(on_text, piece)
        return response

    def _asked(self, request: Mapping[str, Any]) -> Asked:
        return asked_for("model:scripted", self.api, request, FREE)

    def _reply(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        number, _ = heard_in(self.api, request)
        return response_of(self.api, self.given.reply(self.api, request), request, number=number + 1)

    def _pieces(self, response: Mapping[str, Any]) -> list[str]:
        found = [dialect(self.api).delta(event) for _, event in events_of(self.api, response)]
        return [piece for piece in found if piece]


def client_for(given: object, api: Api | None, *, is_async: bool) -> Client:
    """The client, recorded if it is not yet; raises where it does not speak ``api`` or has the wrong colour."""
    if isinstance(given, ScriptedModel):
        provider = "scripted"
    else:
        kind = kind_of(given)
        provider = kind.provider
        if kind.is_async != is_async:
            wanted = "run_agent_async" if kind.is_async else "run_agent"
            raise UsageError(f"{type(given).__name__} is for {wanted}", hint="take the client of the other colour")
        given = given if kind.is_recorded else record(given)
    if api is not None and api not in APIS[provider]:
        raise UsageError(f"{provider} does not speak {api!r}; it speaks {', '.join(APIS[provider])}")
    return Client(api or APIS[provider][0], given)


def _plain(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.to_dict(mode="json", warnings=False)
    return found


def _recorded(result: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = result["response"]
    return found


async def _called(on_text: OnText, piece: str) -> None:
    done = on_text(piece)
    if inspect.isawaitable(done):
        awaited: Awaitable[object] = done
        await awaited
