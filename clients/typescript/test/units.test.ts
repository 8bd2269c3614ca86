/** What needs no server: requests that are repeated, errors that are judged, and the verbs. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Attempt, Busy, Client, errorOf, Held, InDoubt, Invalid, NoEffect, Run, Unreachable, Waiting, Worker } from "../src/index.js";
import { encode } from "../src/json.js";
import { ROUTES } from "../src/types.js";
import { judged, report, WorkLease } from "../src/work.js";
import { Connection, monotonic } from "../src/http.js";

type Reply = Response | Error | (() => Promise<Response>);

/** A client whose requests are answered from a list; the last answer stays. */
function played(...answers: Reply[]): { client: Client; sent: [string, RequestInit][] } {
  const sent: [string, RequestInit][] = [];
  const fake = async (url: unknown, init: unknown): Promise<Response> => {
    sent.push([String(url), init as RequestInit]);
    const answer = answers[Math.min(sent.length, answers.length) - 1];
    if (answer instanceof Error) throw answer;
    return typeof answer === "function" ? answer() : (answer as Response).clone();
  };
  return { client: new Client({ url: "http://x:1/below/", token: "t", fetch: fake as typeof fetch, patience: 5 }), sent };
}

const json = (data: unknown, status = 200, headers: Record<string, string> = {}) =>
  new Response(JSON.stringify(data), { status, headers: { "content-type": "application/json", ...headers } });
const problem = (code: string, status: number, more: object = {}) =>
  json({ type: "t", title: "t", status, detail: "d", code, hint: "h", ...more }, status);
const lost = (code: string) => new TypeError("fetch failed", { cause: Object.assign(new Error(code), { code }) });
const opened = { id: "a/b", state: "open", generation: 1, resumed: false, over: false, input: null, client_lease: 60 };

test("every route of the service has a verb", () => {
  const client = new Client({ url: "http://x", token: "t" });
  const elsewhere: Record<string, unknown> = {
    run: client.info, answer: Run.prototype.answer, answer_all: Run.prototype.answer_all, execute: Run.prototype.execute,
    before_end: Run.prototype.before_end, commit: Run.prototype.commit, renew: Run.prototype.renew,
    suspend: Run.prototype.suspend, open_child: Run.prototype.open_child,
    approval_for: Run.prototype.approval_for, begin: Run.prototype.begin, succeed: Attempt.prototype.succeed,
    fail: Attempt.prototype.fail, renew_claim: Attempt.prototype.renew, register: Worker, take: Worker, leave: Worker,
  };
  for (const name of Object.keys(ROUTES)) {
    const verb = elsewhere[name] ?? (client as unknown as Record<string, unknown>)[name];
    assert.equal(typeof verb, "function", `no verb for ${name}`);
  }
});

test("a request is repeated after a lost answer, an answer that passes, and a proxy's error", async () => {
  const { client, sent } = played(
    lost("ECONNRESET"), new Response("<html>", { status: 502 }), problem("LedgerUnavailable", 503),
    problem("Busy", 409, { retry_after: 0 }), json(opened, 201),
  );
  assert.equal((await client.open("a/b", { tags: ["x"] })).id, "a/b");
  assert.equal(sent.length, 5);
  assert.ok(sent.every(([url, init]) => url === "http://x:1/below/v1/runs" && init.body === sent[0]?.[1].body));
});

test("what would happen twice is not repeated once it may have been sent", async () => {
  const made = { name: "n", scopes: ["viewer" as const], why: "w" };
  for (const [first, times] of [[lost("ECONNRESET"), 1], [lost("ECONNREFUSED"), 2], [problem("LedgerUnavailable", 503), 1]] as const) {
    const { client, sent } = played(first, json({}));
    await client.create_token(made as never).catch((error: unknown) => assert.ok(times === 1, String(error)));
    assert.equal(sent.length, times);
  }
});

test("patience ends with a typed error that has its cause and a hint", async () => {
  const { client, sent } = played(lost("ECONNRESET"));
  await assert.rejects(client.open("a", { patience: 0.3 }), (error) => {
    assert.ok(error instanceof Unreachable);
    assert.ok(error.hint);
    assert.equal((error.cause as Error).message, "fetch failed");
    return true;
  });
  assert.ok(sent.length > 1);
});

test("a problem is the class that its code names", async () => {
  assert.ok(errorOf({ type: "", title: "", status: 409, detail: "d", code: "Held", hint: "h" }) instanceof Waiting);
  assert.equal(errorOf({ type: "", title: "", status: 400, detail: "d", code: "constructor", hint: "" }).name, "AmendsError");
  const { client, sent } = played(problem("Invalid", 422, { problems: ["id: too long"] }));
  await assert.rejects(client.open("a"), (error) => {
    assert.ok(error instanceof Invalid);
    assert.deepEqual(error.problem.problems, ["id: too long"]);
    return true;
  });
  assert.equal(sent.length, 1);
  assert.ok(!(new Busy("b") instanceof Held));
});

test("ids are quoted in addresses", async () => {
  const { client, sent } = played(json({}));
  await client.report("a/b ?#ü");
  assert.equal(sent[0]?.[0], "http://x:1/below/v1/runs/a%2Fb%20%3F%23%C3%BC/report");
});

test("the caller's signal ends a request at once, with its reason", async () => {
  const { client, sent } = played(lost("ECONNRESET"));
  await assert.rejects(client.open("a", { signal: AbortSignal.abort(new Error("enough")) }), /enough/);
  assert.equal(sent.length, 0);
  const stop = new AbortController();
  const going = client.open("a", { signal: stop.signal, patience: 60 });
  setTimeout(() => stop.abort(new Error("enough")), 50);
  await assert.rejects(going, /enough/);
});

test("a block: Waiting suspends, an unreachable server is left alone, another error rolls back", async () => {
  const verbs = async (thrown: unknown) => {
    const { client, sent } = played(json(opened, 201), json({ run: {} }));
    await assert.rejects(client.run("a/b", () => Promise.reject(thrown)), (error) => error === thrown);
    return sent.slice(1).map(([url]) => url.split("/").at(-1));
  };
  assert.deepEqual(await verbs(new Held("h")), ["suspend"]);
  assert.deepEqual(await verbs(new Unreachable("u")), []);
  assert.deepEqual(await verbs(new Error("e")), ["rollback"]);
  assert.deepEqual(await verbs("a text"), ["rollback"]);
});

test("a child's block commits or rolls back its own run, and leaves Waiting to the block around it", async () => {
  const verbs = async (thrown?: unknown) => {
    const { client, sent } = played(json(opened, 201), json({ ...opened, id: "a/b/c" }, 201), json({ run: {} }));
    const run = await client.open("a/b");
    const done = run.child("c", { input: 1 }, (child) => (thrown === undefined ? child.id : Promise.reject(thrown)));
    if (thrown === undefined) assert.equal(await done, "a/b/c");
    else await assert.rejects(done, (error) => error === thrown);
    return sent.slice(1).map(([url]) => url.slice("http://x:1/below/v1/runs/".length));
  };
  assert.deepEqual(await verbs(), ["a%2Fb/children", "a%2Fb%2Fc/commit"]);
  assert.deepEqual(await verbs(new Error("e")), ["a%2Fb/children", "a%2Fb%2Fc/rollback"]);
  assert.deepEqual(await verbs(new Held("h")), ["a%2Fb/children"]);
});

test("a block whose rollback fails throws that, with the first error as its cause", async () => {
  const { client } = played(json(opened, 201), problem("RunBlocked", 409));
  const first = new Error("first");
  await assert.rejects(client.run("a/b", () => Promise.reject(first)), (error) => {
    assert.equal((error as Error).name, "RunBlocked");
    assert.equal((error as Error).cause, first);
    return true;
  });
});

test("what an error says about the effect", () => {
  const table: [unknown, object][] = [
    [new NoEffect("n"), { no_effect: true }],
    [new NoEffect("n", { cause: lost("ECONNRESET") }), { no_effect: true }],
    [new InDoubt("d"), { doubt: true }],
    [lost("ECONNREFUSED"), { no_effect: true }],
    [lost("ECONNRESET"), { doubt: true }],
    [lost("UND_ERR_SOCKET"), { doubt: true }],
    [lost("UND_ERR_CONNECT_TIMEOUT"), { no_effect: true }],
    [new DOMException("t", "TimeoutError"), { doubt: true }],
    [new DOMException("a", "AbortError"), { doubt: true }],
    [Object.assign(new Error("s"), { status: 503 }), { doubt: true }],
    [Object.assign(new Error("s"), { response: { status: 201 } }), { doubt: true }],
    [Object.assign(new Error("s"), { statusCode: 402 }), {}],
    [new AggregateError([lost("ECONNREFUSED"), lost("ECONNRESET")]), { doubt: true }],
    [new Error("outer", { cause: lost("ECONNRESET") }), { doubt: true }],
    [new Error("card declined"), {}],
    ["a text", {}],
    [undefined, {}],
  ];
  for (const [error, wanted] of table) assert.deepEqual(judged(error), wanted, String(error));
});

test("a lease is counted from before it was asked for, and nothing begins after it", async () => {
  const { client } = played(problem("LeaseLost", 409));
  const piece = { call: "c", token: "t", lease: 10 };
  await assert.rejects(new WorkLease(client.connection, piece, monotonic() - 9).begin(), { name: "LeaseLost" });
  const fresh = new WorkLease(client.connection, piece, monotonic());
  await fresh.begin();
  assert.ok(!fresh.signal.aborted);
  fresh.end();
});

test("a lease that the service refuses to renew is over at once", async () => {
  const { client } = played(problem("LeaseLost", 409));
  const lease = new WorkLease(client.connection, { call: "c", token: "t", lease: 0.3 }, monotonic());
  await lease.begin();
  await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
  assert.equal((lease.signal.reason as Error).name, "LeaseLost");
});

test("a report is repeated until it is answered, and not after an answer that stays", async () => {
  const piece = { call: "c", token: "t", lease: 1 };
  const done = { call: "c", attempt: 1, state: "succeeded" };
  const late = played(lost("ECONNRESET"), problem("LedgerMissing", 503), problem("Internal", 500), json(done));
  assert.deepEqual(await report(late.client.connection, piece, { result: 1 }), done);
  assert.equal(new Set(late.sent.map(([, init]) => init.body)).size, 1);
  for (const [code, status] of [["ReportConflict", 409], ["RunEnded", 409], ["CallNotFound", 404], ["Unauthorized", 401]] as const) {
    const { client, sent } = played(problem(code, status));
    await assert.rejects(report(client.connection, piece, { result: 1 }), { name: code });
    assert.equal(sent.length, 1);
  }
  const { client, sent } = played(problem("BodyTooLarge", 413), json(done));
  await report(client.connection, piece, { result: "large" });
  assert.deepEqual(sent.map(([url]) => url.split("/").at(-1)), ["succeed", "fail"]);
  assert.equal(JSON.parse(String(sent[1]?.[1].body)).doubt, true);
});

test("a block without a function is refused before anything is opened", async () => {
  const { client, sent } = played(json(opened, 201));
  await assert.rejects(client.run("a", { tags: [] } as never), { name: "UsageError" });
  assert.equal(sent.length, 0);
});

test("a value that JSON would change is refused", () => {
  const ring: Record<string, unknown> = {};
  ring["self"] = ring;
  for (const value of [Number.NaN, Infinity, 1n, () => 1, Symbol("s"), [undefined], new Map(), new Set(), ring, { a: [1, -Infinity] }]) {
    assert.throws(() => encode(value), { name: "UsageError" });
  }
  const twice = { a: 1 };
  assert.equal(encode([twice, twice, new Date(0), null]), '[{"a":1},{"a":1},"1970-01-01T00:00:00.000Z",null]');
  assert.equal(encode(undefined), "null");
});

test("a token does not show", () => {
  const client = new Client({ url: "http://x", token: "secret-token" });
  assert.ok(client.connection instanceof Connection);
  assert.ok(!JSON.stringify(client).includes("secret-token"));
});

test("every request about a run names it for a proxy, and a worker is always sent to one server", async () => {
  const claim = { call: "c", key: "k", attempt: 1, state: "started", replayed: false, token: "t", lease: 9, result: null };
  const done = { call: "c", attempt: 1, state: "succeeded", lease: 9 };
  const routes = (sent: [string, RequestInit][]) => sent.map(([, init]) => (init.headers as Record<string, string>)["X-Amends-Route"]);
  const { client, sent } = played(json({ ...opened, id: "a/ä!" }, 201), json(claim, 201), json(done), json(done), json({}));
  const run = await client.open("a/ä!");
  const attempt = await run.begin("ship", {}, { kind: "pivot" });
  await attempt.renew();
  attempt.spent(0.5);
  attempt.spent(0.25);
  attempt.spent(1300, "tokens");
  await attempt.succeed();
  assert.deepEqual(JSON.parse(String(sent[3]?.[1].body)).spent, { usd: 0.75, tokens: 1300 });
  await client.connection.ask("health");
  assert.deepEqual(routes(sent), [...Array(4).fill("a%2F%C3%A4%21"), undefined]);
  const own: [string, RequestInit][] = [];
  const fake = async (url: unknown, init: unknown): Promise<Response> => {
    own.push([String(url), init as RequestInit]);
    return json(opened, 201);
  };
  await new Client({ url: "http://x", token: "t", fetch: fake as typeof fetch, route: "ours" }).open("a");
  assert.deepEqual(routes(own), ["ours"]);
  assert.throws(() => new Client({ url: "http://x", token: "t", route: "a\nb" }), { name: "UsageError" });
});
