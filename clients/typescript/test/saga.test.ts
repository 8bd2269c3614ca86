/** Sagas over HTTP with tools in a worker: commit, roll back, refuse, approve. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import {
  AmendsError, BadArguments, BadDeclaration, Client, Held, Invalid, KeyConflict, NotFound, RunConflict, serve, Taken,
  tool, Unauthorized, Forbidden, UnknownTool, UsageError,
} from "../src/index.js";
import { charge } from "./bank.js";
import { Service } from "./service.js";

let service: Service;
let client: Client;
before(async () => {
  service = await Service.start();
  await service.worker();
  client = service.client("agent");
});
after(() => service?.close());

const of = (order: string) => service.lines.filter((line) => line.includes(order));

test("a run commits when its function returns, and is answered from the record when it is started again", async () => {
  const shop = () =>
    client.run("order-1", { input: { order: "1" } }, async (run) => {
      const { charge } = await run.call<{ charge: string }>("charge", { order: "one", cents: 5 });
      return [charge, await run.call("reserve", { item: "one-item" })];
    });
  assert.deepEqual(await shop(), ["ch_one", "rs_one-item"]);
  assert.deepEqual(await shop(), ["ch_one", "rs_one-item"]);
  assert.equal(of("one").length, 2, String(of("one")));
  const report = await client.report("order-1");
  assert.equal(report.run.state, "committed");
  assert.deepEqual(report.calls.map((call) => call.state), ["succeeded", "succeeded"]);
});

test("a run rolls back when its function throws: the worker compensates, newest first", async () => {
  const thrown = new RangeError("the customer has left");
  const going = client.run("order-2", async (run) => {
    await run.call("charge", { order: "two", cents: 5 });
    await run.call("reserve", { item: "two-item" });
    throw thrown;
  });
  await assert.rejects(going, (error) => error === thrown);
  assert.deepEqual(of("two").slice(2), ["release rs_two-item", "refund ch_two"]);
  const report = await client.report("order-2");
  assert.equal(report.run.state, "rolled_back");
  assert.deepEqual(report.calls.map((call) => call.state), ["compensated", "compensated"]);
});

test("wrong input is a typed error with a hint, and nothing has happened", async () => {
  const before = service.lines.length;
  const run = await client.open("order-3", { input: 1 });
  const refused = (going: Promise<unknown>, kind: typeof AmendsError) =>
    assert.rejects(going, (error) => {
      assert.ok(error instanceof kind, `${String(error)} is not ${kind.name}`);
      assert.ok(error.hint, `${error.name} has no hint`);
      return true;
    });
  await refused(run.call("charge", { order: "three" }), BadArguments);
  await refused(run.call("charge", { order: "three", cents: 0 }), BadArguments);
  await refused(run.call("nothing", {}), UnknownTool);
  await refused(run.call("charge", { order: "three", cents: Number.NaN }), UsageError);
  await refused(run.call("charge", { order: "three", cents: 1n }), UsageError);
  await refused(run.answer("charge", { order: "three" }, { colour: 1 } as object), Invalid);
  await refused(client.open("order-3", { input: 2 }), RunConflict);
  await refused(client.open("", {}), UsageError);
  await refused(client.report(".."), UsageError);
  await refused(client.report("no such run"), NotFound);
  await refused(service.client("agent", { token: "wrong" }).report("x"), Unauthorized);
  await refused(client.approvals().next(), Forbidden);
  assert.throws(() => new Client({ url: "ftp://x", token: "t" }), UsageError);
  assert.throws(() => new Client({ url: "http://x", token: "a\nb" }), UsageError);
  assert.equal(service.lines.length, before);
  await run.call("charge", { order: "three", cents: 5 });
  await refused(run.call("charge", { order: "three", cents: 6 }), KeyConflict);
  await run.rollback("a test");
});

test("a tool that cannot be declared is refused before any work is taken", async () => {
  const worker = service.client("worker");
  const body = () => 1;
  assert.throws(() => tool({ name: "x" } as never), BadDeclaration);
  assert.throws(() => tool({ name: "", execute: body }), BadDeclaration);
  assert.throws(() => tool({ name: "x", execute: body, probe: 1 as never }), BadDeclaration);
  assert.throws(() => serve(worker, []), BadDeclaration);
  assert.throws(() => serve(worker, [charge, charge]), BadDeclaration);
  assert.throws(() => serve(worker, [charge], { concurrency: 0 }), UsageError);
  const other = tool({ ...charge.declared, compensate: undefined, probe: undefined, kind: "pivot", execute: body } as never);
  await assert.rejects(serve(worker, [other], { signals: [] }).done, Taken);
  const odd = tool({ name: "odd", parameters: { type: "object", properties: { a: { not: {} } } }, execute: body });
  await assert.rejects(serve(worker, [odd], { signals: [] }).done, BadDeclaration);
  const unknown = tool({ name: "odd", colour: 1, execute: body } as never);
  await assert.rejects(serve(worker, [unknown], { signals: [] }).done, Invalid);
  await assert.rejects(serve(client, [charge], { signals: [] }).done, Forbidden);
});

test("a call that needs approval leaves the run open, and goes on when a person has approved", async () => {
  const pay = () => client.run("order-4", (run) => run.call<number>("wire", { cents: 7 }));
  await assert.rejects(pay(), Held);
  const approver = service.client("approver");
  for await (const asked of approver.approvals()) {
    await approver.approve(asked.id, { digest: asked.digest, why: "looked at it" });
  }
  assert.equal(await pay(), 7);
  assert.deepEqual(of("wire"), ["wire 7"]);
  assert.equal((await client.info("order-4")).state, "committed");
});

test("an effect that the client makes itself is made once, and known afterwards", async () => {
  const make = () =>
    client.run("order-5", (run) =>
      run.perform("send", { to: "ada" }, async (attempt) => service.write(`send five ${attempt.key}`), { kind: "pivot", lease: 1 }),
    );
  await make();
  await make();
  assert.equal(of("five").length, 1);
});

test("events are listed page by page, and followed while they happen", async () => {
  const run = await client.open("order-6");
  const seen: string[] = [];
  const stop = new AbortController();
  const following = (async () => {
    for await (const event of client.events({ run: "order-6", follow: true, signal: stop.signal })) {
      seen.push(event.what);
      if (event.to === "committed") stop.abort();
    }
  })();
  await run.call("charge", { order: "six", cents: 5 });
  await run.commit();
  await following;
  const listed = [];
  for await (const event of client.events({ run: "order-6", limit: 2 })) listed.push(event.what);
  assert.ok(listed.length > 2);
  assert.deepEqual(seen, listed.slice(0, seen.length));
});
