"""What a server asks of the client for which it works: a message of a model, an answer of the user, the roots.

A client of an older protocol is asked at once, over its connection. A stateless one is asked by an answer to its request
(``InputRequired``), which it sends again with what it was asked for; until then the call waits here, and goes on.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from mcp import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    ListRootsResult,
)

from amends.secrets import BadSignature, Secrets

STATELESS: Final = "2026-07-28"
ASKED: Final = "server"
"""The name of a server's question in ``InputRequired``."""
PREFIX: Final = "server."
"""What the state of a request begins with that waits for an answer to a server."""
PAUSE_S: Final = 86_400.0
"""How long a client may take to bring back the answer of its user."""
WAITING_MAX: Final = 1_000
"""How many calls wait for an answer of their clients; of more, the oldest is given up."""
PURPOSE: Final = "gateway-question"
CAN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "sampling/createMessage": lambda can: can.sampling,
    "elicitation/create": lambda can: can.elicitation,
    "roots/list": lambda can: can.roots,
}
ANSWERS: Final[Mapping[str, type[Any]]] = {
    "sampling/createMessage": CreateMessageResult,
    "elicitation/create": ElicitResult,
    "roots/list": ListRootsResult,
}


class Asking:
    """Who asks at the moment: a client that a server's own questions can be passed on to.

    ``client`` tells one client from the others; requests of one client have the same. ``by_answer``: its request can be
    answered by a question.
    """

    def __init__(self, ctx: Any, *, client: str, by_answer: bool = False) -> None:
        self.client = client
        self._by_answer = by_answer
        self.result: Any = None
        """What the server has answered, before it was judged."""
        self.questions: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self.told: Callable[[], None] = lambda: None
        """Called when the server has asked something."""
        self._is_over = False
        self.comes(ctx)

    def comes(self, ctx: Any) -> None:
        """Take the request by which the client now waits: the first one, or a later round of it."""
        meta = ctx.meta or {}
        self.session, self.request_id = ctx.session, ctx.request_id
        self.progress_token = meta.get("progress_token")
        self.log_level = meta.get(LOG_LEVEL_META_KEY)

    @property
    def can_be_asked(self) -> bool:
        """Whether the client can answer any question of a server."""
        can = self.session.client_capabilities
        return can is not None and any(one(can) is not None for one in CAN.values())

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Pass on how far the server is."""
        await self.session.report_progress(progress, total, message)

    async def ask(self, request: Any) -> Any:
        """Return what the client answers to a server's question, or why there is no answer."""
        can = self.session.client_capabilities
        if can is None or CAN[request.method](can) is None:
            return ErrorData(code=METHOD_NOT_FOUND, message=f"the client cannot answer {request.method}")
        if self.session.protocol_version >= STATELESS:
            return await self._ask_by_answer(request)
        answer = ANSWERS[request.method]
        if getattr(request.params, "tools", None) is not None:
            answer = CreateMessageResultWithTools
        related = ServerMessageMetadata(related_request_id=self.request_id) if self.request_id is not None else None
        try:
            return await self.session.send_request(request, answer, metadata=related)
        except MCPError as error:
            return ErrorData(code=error.code, message=error.message)
        except Exception as error:  # whatever a foreign client says, its server gets an answer
            return ErrorData(code=INTERNAL_ERROR, message=f"the client did not answer: {type(error).__name__}")

    async def _ask_by_answer(self, request: Any) -> Any:
        if not self._by_answer or self._is_over:
            return ErrorData(code=METHOD_NOT_FOUND, message="this request of the client cannot be interrupted")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.questions.append((request, answer))
        self.told()
        return await answer

    def over(self) -> None:
        """Refuse what is still asked: the client has its result."""
        self._is_over = True
        while self.questions:
            _, answer = self.questions.popleft()
            if not answer.done():
                answer.set_result(ErrorData(code=INTERNAL_ERROR, message="the client has its result already"))


class _Talk:
    """One call of a stateless client, in which the server may ask something."""

    def __init__(self, asking: Asking, params: CallToolRequestParams, made: asyncio.Task[Any]) -> None:
        self.asking, self.made = asking, made
        self.of = (params.name, params.arguments)
        self.answer: asyncio.Future[Any] | None = None


class Talks:
    """The calls of stateless clients that wait for an answer to a server's question."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._waiting: dict[str, _Talk] = {}
        self._given_up: set[asyncio.Task[Any]] = set()

    async def call(
        self, asking: Asking, params: CallToolRequestParams, made: Coroutine[Any, Any, Any], *, who: str
    ) -> CallToolResult | InputRequiredResult:
        """Make a call; return its result, or what its server asks first."""
        if not asking.can_be_asked:  # nothing can interrupt the call: it needs no task of its own
            return await made  # type: ignore[no-any-return]
        return await self._until(_Talk(asking, params, asyncio.get_running_loop().create_task(made)), who)

    async def go_on(
        self, ctx: Any, params: CallToolRequestParams, *, who: str
    ) -> CallToolResult | InputRequiredResult | None:
        """Go on with a call, with the answer that this request brings; None: no call waits for it here any more."""
        try:
            said = self._secrets.read(PURPOSE, str(params.request_state).removeprefix(PREFIX))
        except BadSignature as bad:
            raise MCPError(INVALID_PARAMS, f"requestState: {bad}") from None
        if said["who"] != who:
            raise MCPError(INVALID_PARAMS, "requestState: it was made for somebody else")
        talk = self._waiting.get(said["id"])
        if talk is None:
            return None
        if talk.of != (params.name, params.arguments):
            raise MCPError(INVALID_PARAMS, "requestState: it was made for another call")
        del self._waiting[said["id"]]
        talk.asking.comes(ctx)
        heard = (params.input_responses or {}).get(ASKED)
        if talk.answer is not None and not talk.answer.done():
            refused = ErrorData(code=INVALID_PARAMS, message="the client brought no answer")
            talk.answer.set_result(refused if heard is None else heard)
        return await self._until(talk, who)

    async def _until(self, talk: _Talk, who: str) -> CallToolResult | InputRequiredResult:
        if not talk.made.done() and not talk.asking.questions:
            await self._wait(talk)
        if talk.made.done():
            talk.asking.over()
            result: CallToolResult | InputRequiredResult = talk.made.result()
            return result
        request, talk.answer = talk.asking.questions.popleft()
        name = uuid.uuid4().hex
        self._waiting[name] = talk
        if len(self._waiting) > WAITING_MAX:
            self._give_up(self._waiting.pop(next(iter(self._waiting))).made)
        talk.made.add_done_callback(lambda _: self._forget_later(name))
        state = PREFIX + self._secrets.sign(PURPOSE, {"id": name, "who": who}, lives_s=PAUSE_S)
        return InputRequiredResult(input_requests={ASKED: request}, request_state=state)

    async def _wait(self, talk: _Talk) -> None:
        """Wait until a call is over, or its server has asked something."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: Any = None) -> None:
            if not woken.done():
                woken.set_result(None)

        talk.asking.told = wake
        talk.made.add_done_callback(wake)
        try:
            await woken
        except asyncio.CancelledError:
            self._give_up(talk.made)
            raise
        finally:
            talk.made.remove_done_callback(wake)

    def _give_up(self, made: asyncio.Task[Any]) -> None:
        """Cancel a call whose client has cancelled its request; the ledger says what is known of it."""
        made.cancel()
        self._given_up.add(made)
        made.add_done_callback(self._given_up.discard)

    def _forget_later(self, name: str) -> None:
        """Forget a call that ended although nobody answered (its time was up), if its client does not come back."""
        asyncio.get_running_loop().call_later(PAUSE_S, self._waiting.pop, name, None)

    def close(self) -> None:
        """Give up all that waits."""
        for talk in self._waiting.values():
            self._give_up(talk.made)
        self._waiting.clear()
