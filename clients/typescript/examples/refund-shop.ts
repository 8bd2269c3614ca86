/**
 * A shop in TypeScript: an agent's run and the worker that performs its tools, in one program. It is killed between an
 * effect and its report, started again, and goes on: one charge, one parcel.
 *
 *     amends serve app.py:rt                                    (a runtime without tools is enough)
 *     AMENDS_URL=... AGENT_TOKEN=... WORKER_TOKEN=... node build/examples/refund-shop.js
 *
 * The bank is the file bank.txt. `KILL=charge` kills the program once, right after the charge; then start it again.
 */

import { appendFileSync, existsSync, readFileSync } from "node:fs";

import { absent, Client, happened, InDoubt, serve, tool } from "../src/index.js"; // "amends-client" in your program

const { AMENDS_URL: url = "http://127.0.0.1:8642", AGENT_TOKEN = "", WORKER_TOKEN = "", KILL = "" } = process.env;
const BANK = "bank.txt";
const entries = () => (existsSync(BANK) ? readFileSync(BANK, "utf-8").split("\n") : []);
const enter = (entry: string) => appendFileSync(BANK, `${entry}\n`);

const charge = tool({
  name: "charge",
  description: "Charge the customer's card",
  parameters: {
    type: "object",
    properties: { order: { type: "string" }, cents: { type: "integer", minimum: 1 } },
    required: ["order", "cents"],
  },
  key: ["order"], // one charge for an order, whatever a model says twice
  lease: 2, // silent for two seconds: in doubt
  execute({ order, cents }: { order: string; cents: number }, { key }) {
    enter(`${key} charge ${order} ${cents}`);
    if (KILL === "charge") process.kill(process.pid, "SIGKILL"); // the effect is there, and nobody knows
    return `ch_${order}`;
  },
  compensate(_args, { result }) {
    enter(`refund ${result}`);
  },
  probe({ order }, { key }) {
    return entries().some((entry) => entry.startsWith(`${key} charge`)) ? happened(`ch_${order}`) : absent();
  },
});

const ship = tool({
  name: "ship",
  kind: "pivot", // the point of no return
  parameters: { type: "object", properties: { order: { type: "string" } }, required: ["order"] },
  execute({ order }: { order: string }) {
    enter(`ship ${order}`);
    return `parcel_${order}`;
  },
});

const worker = serve(new Client({ url, token: WORKER_TOKEN }), [charge, ship], { name: "shop", wait: 2 });
await worker.ready;

const client = new Client({ url, token: AGENT_TOKEN });
const parcel = await client.run("order-1042", { recover: "resume", client_lease: 10 }, async (run) => {
  const paid = await settled(() => run.call<string>("charge", { order: "1042", cents: 4200 }));
  console.log(run.resumed ? "resumed:" : "new:", paid);
  return run.call<string>("ship", { order: "1042" });
});
console.log(parcel, (await client.info("order-1042")).state);
await worker.stop();

/** Ask again while a doubt is being settled: the probe answers for the call that was lost. */
async function settled<T>(ask: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries += 1) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof InDoubt) || tries === 60) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}
