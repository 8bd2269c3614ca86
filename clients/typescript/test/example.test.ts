/** The example is killed, started again, and has charged once. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Service } from "./service.js";

test("the example is killed between effect and report, and recovered: one charge, one parcel", { timeout: 120_000 }, async () => {
  const service = await Service.start({ lease: 2 });
  try {
    const start = async (env: Record<string, string>) => {
      const { agent = "", worker = "" } = service.tokens;
      const script = fileURLToPath(new URL("../examples/refund-shop.js", import.meta.url));
      const child = spawn(process.execPath, [script], {
        cwd: service.folder, stdio: ["ignore", "pipe", "inherit"],
        env: { ...process.env, AMENDS_URL: service.url, AGENT_TOKEN: agent, WORKER_TOKEN: worker, ...env },
      });
      let said = "";
      child.stdout.on("data", (part: Buffer) => (said += part.toString()));
      const [code, signal] = (await once(child, "exit")) as [number | null, string | null];
      return { code, signal, said };
    };
    assert.equal((await start({ KILL: "charge" })).signal, "SIGKILL");
    const { code, said } = await start({});
    assert.equal(code, 0, said);
    assert.equal(said, "resumed: ch_1042\nparcel_1042 committed\n");
    const bank = readFileSync(join(service.folder, "bank.txt"), "utf-8").trim().split("\n");
    assert.deepEqual(bank.map((entry) => entry.replace(/^\S+ charge/, "charge")), ["charge 1042 4200", "ship 1042"]);
  } finally {
    await service.close();
  }
});
