/** A worker with the tools of a bank, whose book is a file. `DIE=charge` kills it between that effect and its report. */

import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

import { absent, Client, happened, serve, tool } from "../src/index.js";

const { AMENDS_URL = "", AMENDS_TOKEN = "", BOOK = "", DIE = "", SLOW_MS = "0" } = process.env;
const lines = () => (existsSync(BOOK) ? readFileSync(BOOK, "utf-8").split("\n") : []);
const write = (line: string) => appendFileSync(BOOK, `${line}\n`);

export const charge = tool({
  name: "charge",
  description: "Charge a card",
  parameters: {
    type: "object",
    properties: { order: { type: "string" }, cents: { type: "integer", minimum: 1 } },
    required: ["order", "cents"],
  },
  key: ["order"],
  lease: 1,
  settle: 0.1,
  async execute({ order, cents }: { order: string; cents: number }, work) {
    write(`charge ${order} ${cents} ${work.key}`);
    if (DIE === "charge") process.kill(process.pid, "SIGKILL");
    await pause(Number(SLOW_MS));
    return { charge: `ch_${order}` };
  },
  compensate(_args, { result }) {
    write(`refund ${result.charge}`);
  },
  probe({ order }) {
    write(`probe ${order}`);
    return lines().some((line) => line.startsWith(`charge ${order} `)) ? happened({ charge: `ch_${order}` }) : absent();
  },
});

export const reserve = tool({
  name: "reserve",
  parameters: { type: "object", properties: { item: { type: "string" } }, required: ["item"] },
  lease: 1,
  async execute({ item }: { item: string }) {
    write(`reserve ${item}`);
    return `rs_${item}`;
  },
  compensate(_args, { result }) {
    write(`release ${result}`);
  },
});

export const wire = tool({
  name: "wire",
  kind: "pivot",
  needs_approval: true,
  parameters: { type: "object", properties: { cents: { type: "integer" } }, required: ["cents"] },
  execute({ cents }: { cents: number }) {
    write(`wire ${cents}`);
    return cents;
  },
});

if (AMENDS_URL) {
  const client = new Client({ url: AMENDS_URL, token: AMENDS_TOKEN });
  const worker = serve(client, [charge, reserve, wire], { name: "bank", wait: 2 });
  await worker.ready;
  console.log("ready");
  await worker.done;
}
