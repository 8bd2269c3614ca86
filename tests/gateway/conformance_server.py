"""The server that the conformance suite of the protocol wants to see: over standard input and output, or ``--http PORT``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    CompleteResult,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    Tool,
)

STATELESS = "2026-07-28"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
BEEP = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STRING: dict[str, Any] = {"type": "string"}


def texts(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


def embedded(uri: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type="text/plain", text=text))


IMAGE, AUDIO = ImageContent(data=DOT, mime_type="image/png"), AudioContent(data=BEEP, mime_type="audio/wav")


class Needs(Exception):
    """The client of a stateless request must be asked first."""


async def ask(ctx: Any, params: Any, request: Any, answer: type[Any]) -> Any:
    if ctx.protocol_version >= STATELESS:
        if params.input_responses is None:
            raise Needs(InputRequiredResult(input_requests={"asked": request}, request_state="asked"))
        return params.input_responses["asked"]
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, answer, metadata=related)


async def elicited(ctx: Any, params: Any, message: str, schema: dict[str, Any]) -> CallToolResult:
    request = ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))
    said: ElicitResult = await ask(ctx, params, request, ElicitResult)
    return texts(f"User response: action={said.action}, content={said.content}")


async def logging_tool(ctx: Any, params: Any) -> CallToolResult:
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", line, "conformance", ctx.request_id)
        await asyncio.sleep(0.05)
    return texts("Logged three lines.")


async def progress_tool(ctx: Any, params: Any) -> CallToolResult:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100)
        await asyncio.sleep(0.05)
    return texts("Progress was reported.")


async def sampling_tool(ctx: Any, params: Any) -> CallToolResult:
    message = SamplingMessage(role="user", content=TextContent(text=str(params.arguments["prompt"])))
    request = CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))
    said = await ask(ctx, params, request, CreateMessageResult)
    return texts(f"LLM response: {said.content.text}")


DEFAULTS = {
    "name": {**STRING, "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {**STRING, "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
TITLED = [{"const": f"value{one}", "title": f"Option {one}"} for one in (1, 2, 3)]
PLAIN = ["option1", "option2", "option3"]
ENUMS = {
    "untitledSingle": {**STRING, "enum": PLAIN},
    "titledSingle": {**STRING, "oneOf": TITLED},
    "legacyEnum": {**STRING, "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": {**STRING, "enum": PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}


def fixed(result: CallToolResult) -> Callable[[Any, Any], Awaitable[CallToolResult]]:
    async def does(_ctx: Any, _params: Any) -> CallToolResult:
        return result

    return does


def asks(schema: dict[str, Any], message: str = "Please answer") -> Callable[[Any, Any], Awaitable[CallToolResult]]:
    async def does(ctx: Any, params: Any) -> CallToolResult:
        asked = str((params.arguments or {}).get("message", message))
        return await elicited(ctx, params, asked, {"type": "object", "properties": schema, "required": []})

    return does


TOOLS: dict[str, Callable[[Any, Any], Awaitable[CallToolResult]]] = {
    "test_simple_text": fixed(texts("This is a simple text response for testing.")),
    "test_image_content": fixed(CallToolResult(content=[IMAGE])),
    "test_audio_content": fixed(CallToolResult(content=[AUDIO])),
    "test_embedded_resource": fixed(CallToolResult(content=[embedded("test://embedded-resource", "Embedded text.")])),
    "test_multiple_content_types": fixed(
        CallToolResult(content=[TextContent(text="Several:"), IMAGE, embedded("test://mixed", "Mixed text.")])
    ),
    "test_error_handling": fixed(
        CallToolResult(content=[TextContent(text="This tool intentionally returns an error")], is_error=True)
    ),
    "test_tool_with_logging": logging_tool,
    "test_tool_with_progress": progress_tool,
    "test_sampling": sampling_tool,
    "test_elicitation": asks({"username": STRING, "email": STRING}),
    "test_elicitation_sep1034_defaults": asks(DEFAULTS),
    "test_elicitation_sep1330_enums": asks(ENUMS),
    "json_schema_2020_12_tool": fixed(texts("ok")),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "test_sampling": {"type": "object", "properties": {"prompt": STRING}, "required": ["prompt"]},
    "test_elicitation": {"type": "object", "properties": {"message": STRING}, "required": ["message"]},
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"type": "object", "properties": {"street": STRING, "city": STRING}}},
        "properties": {"name": STRING, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": False,
    },
}
RESOURCES = {
    "test://static-text": "Static text",
    "test://static-binary": "Static binary",
    "test://watched-resource": "W",
}
PROMPTS: dict[str, tuple[list[str], Callable[[dict[str, str]], list[Any]]]] = {
    "test_simple_prompt": ([], lambda _: [TextContent(text="This is a simple prompt for testing.")]),
    "test_prompt_with_arguments": (
        ["arg1", "arg2"], lambda args: [TextContent(text=f"Arguments: arg1='{args['arg1']}', arg2='{args['arg2']}'")],
    ),
    "test_prompt_with_embedded_resource": (
        ["resourceUri"], lambda args: [embedded(args["resourceUri"], "Embedded text."), TextContent(text="See above.")],
    ),
    "test_prompt_with_image": ([], lambda _: [IMAGE, TextContent(text="See the image.")]),
}  # fmt: skip


async def list_tools(_ctx: Any, _params: Any) -> ListToolsResult:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    return ListToolsResult(
        tools=[Tool(name=name, description="A test.", input_schema=SCHEMAS.get(name, empty)) for name in TOOLS]
    )


async def call_tool(ctx: Any, params: Any) -> CallToolResult | InputRequiredResult:
    try:
        return await TOOLS[params.name](ctx, params)
    except Needs as needs:
        result: InputRequiredResult = needs.args[0]
        return result


async def list_resources(_ctx: Any, _params: Any) -> ListResourcesResult:
    return ListResourcesResult(
        resources=[
            Resource(uri=uri, name=name, description="A test.", mime_type="text/plain")
            for uri, name in RESOURCES.items()
        ]
    )


async def list_templates(_ctx: Any, _params: Any) -> ListResourceTemplatesResult:
    one = ResourceTemplate(uri_template="test://template/{id}/data", name="Template", mime_type="application/json")
    return ListResourceTemplatesResult(resource_templates=[one])


async def read_resource(_ctx: Any, params: Any) -> ReadResourceResult:
    uri = str(params.uri)
    if uri == "test://static-binary":
        return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type="image/png", blob=DOT)])
    number = uri.removeprefix("test://template/").partition("/")[0]
    text = f'{{"id": "{number}", "data": "Data for {number}"}}' if "template" in uri else f"The text of {uri}."
    kind = "application/json" if "template" in uri else "text/plain"
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=kind, text=text)])


async def nothing(_ctx: Any, _params: Any) -> EmptyResult:
    return EmptyResult()


async def list_prompts(_ctx: Any, _params: Any) -> ListPromptsResult:
    return ListPromptsResult(
        prompts=[
            Prompt(
                name=name, description="A test.",
                arguments=[PromptArgument(name=one, description="A test.", required=True) for one in names],
            )
            for name, (names, _) in PROMPTS.items()
        ]
    )  # fmt: skip


async def get_prompt(_ctx: Any, params: Any) -> GetPromptResult:
    said = PROMPTS[params.name][1](dict(params.arguments or {}))
    return GetPromptResult(messages=[PromptMessage(role="user", content=one) for one in said])


async def complete(_ctx: Any, _params: Any) -> CompleteResult:
    return CompleteResult(completion=Completion(values=["paris", "park"], total=2, has_more=False))


def made() -> Server[Any]:
    return Server(
        "conformance", on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource, on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing, on_list_prompts=list_prompts, on_get_prompt=get_prompt, on_completion=complete,
        on_set_logging_level=nothing, on_subscriptions_listen=ListenHandler(InMemorySubscriptionBus()),
    )  # fmt: skip


async def serve() -> None:
    server = made()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if "--http" in sys.argv:
        import uvicorn

        app = made().streamable_http_app(streamable_http_path="/mcp", host="127.0.0.1")
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[-1]), log_level="warning")
    else:
        asyncio.run(serve())
