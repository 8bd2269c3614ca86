/** Kill -9 of a worker and of the server in the middle: one effect each, and the run ends. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, beforeEach, test } from "node:test";

import { LeaseLost, serve, tool } from "../src/index.js";
import { Service, until } from "./service.js";

let service: Service;
const all: Service[] = [];
beforeEach(async () => {
  service = await Service.start({ lease: 2 });
  all.push(service);
});
after(async () => {
  for (const one of all) await one.close();
});

const charges = () => service.lines.filter((line) => line.startsWith("charge"));

test("a worker that is killed between effect and report leaves a doubt, which the next worker's probe settles", async () => {
  const worker = await service.worker({ DIE: "charge" });
  const client = service.client("agent");
  const died = once(worker, "exit");
  const going = client.run("order-1", async (run) => {
    for (;;) {
      const answer = await run.answer("charge", { order: "1", cents: 5 });
      if (!answer.is_error && !answer.waits) return answer.value;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  });
  assert.deepEqual((await died)[1], "SIGKILL");
  await service.worker();
  assert.deepEqual(await going, { charge: "ch_1" });
  assert.equal(charges().length, 1, String(service.lines));
  assert.ok(service.lines.includes("probe 1"), String(service.lines));
  assert.equal((await client.info("order-1")).state, "committed");
});

test("a server that is killed in the middle of a run is followed by the next one, and nothing is repeated", async () => {
  await service.worker();
  const client = service.client("agent");
  const value = await client.run("order-2", async (run) => {
    await run.call("charge", { order: "2", cents: 5 });
    await service.down();
    const back = service.up();
    // Asked while there is no server, and answered by the next one when the worker is back.
    const again = await run.call("charge", { order: "2", cents: 5 });
    await back;
    return [again, await run.call("reserve", { item: "x" })];
  });
  assert.deepEqual(value, [{ charge: "ch_2" }, "rs_x"]);
  assert.equal(charges().length, 1);
  assert.equal(service.lines.filter((line) => line === "reserve x").length, 1, String(service.lines));
  assert.equal((await client.info("order-2")).state, "committed");
});

test("a run that fails while a server is restarted is rolled back by the worker that comes back", async () => {
  await service.worker();
  const client = service.client("agent");
  const going = client.run("order-5", async (run) => {
    await run.call("charge", { order: "5", cents: 5 });
    await service.down();
    void service.up();
    throw new RangeError("changed their mind");
  });
  await assert.rejects(going, RangeError);
  assert.deepEqual(service.lines.slice(1), ["refund ch_5"]);
  assert.equal((await client.info("order-5")).state, "rolled_back");
});

test("a body is told to stop when its lease can be renewed no more; its report counts nevertheless", async () => {
  const client = service.client("agent");
  let reason: unknown;
  const slow = tool({
    name: "slow", lease: 1, settle: 0.1,
    parameters: { type: "object", properties: {} },
    execute: (_args, { signal }) =>
      new Promise((resolve) => {
        service.write("charge slow");
        signal.addEventListener("abort", () => {
          reason = signal.reason;
          resolve("stopped late");
        });
      }),
    compensate: () => undefined,
  });
  const worker = serve(service.client("worker"), [slow], { signals: [], wait: 1, log: () => undefined });
  await worker.ready;
  const run = await client.open("order-3", { client_lease: 60 });
  const going = run.answer("slow", {}).catch((error: unknown) => error);
  await until(() => charges().length === 1, "the body begins");
  await service.down();
  await until(() => reason !== undefined, "the signal is aborted", 5);
  assert.ok(reason instanceof LeaseLost);
  await service.up();
  await going;
  await until(async () => (await run.answer("slow", {})).value === "stopped late", "the report is known");
  assert.equal(charges().length, 1);
  await run.commit();
  await worker.stop();
});

test("a body that takes longer than its lease keeps it, and SIGTERM waits for it", async () => {
  const worker = await service.worker({ SLOW_MS: "2500" });
  const client = service.client("agent");
  const ended = once(worker, "exit");
  const value = client.run("order-4", (run) => run.call("charge", { order: "4", cents: 5 }));
  await until(() => charges().length === 1, "the body begins");
  worker.kill("SIGTERM");
  assert.deepEqual(await value, { charge: "ch_4" });
  assert.deepEqual(await ended, [0, null]);
  assert.ok(!service.lines.includes("probe 4"));
});
