/** A real `amends serve` process over a ledger in a folder of its own, its tokens, and a book that tools write into. */

import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Client, type ConnectionOptions } from "../src/index.js";

const PYTHON = process.env["AMENDS_PYTHON"] ?? "python3";
const APP = `
from amends import Runtime
rt = Runtime(LEDGER, lease=LEASE, wait=5.0, poll_worker=0.2)
`;

export class Service {
  readonly folder = mkdtempSync(join(tmpdir(), "amends-ts-"));
  readonly book = join(this.folder, "book");
  readonly tokens: Record<string, string> = {};
  url = "";
  static #first: Promise<{ tokens: Record<string, string>; ledger: Buffer }> | undefined;
  #port = 0;
  #server: ChildProcess | undefined;
  readonly #children: ChildProcess[] = [];

  /** Start a server over a ledger of its own. */
  static async start(options: { lease?: number } = {}): Promise<Service> {
    const made = new Service();
    Service.#first ??= made.#make();
    const { tokens, ledger } = await Service.#first;
    Object.assign(made.tokens, tokens);
    writeFileSync(join(made.folder, "l.db"), ledger);
    const url = JSON.stringify(`sqlite:///${made.folder}/l.db`);
    const app = APP.replace("LEDGER", url).replace("LEASE", String(options.lease ?? 3));
    writeFileSync(join(made.folder, "app.py"), app);
    made.#port = await freePort();
    await made.up();
    return made;
  }

  /** Make a ledger with tokens, as one does on the command line: once for all tests, since it takes a while. */
  async #make(): Promise<{ tokens: Record<string, string>; ledger: Buffer }> {
    const url = `sqlite:///${this.folder}/first.db`;
    await this.#amends("db", "migrate", "--url", url);
    const tokens: Record<string, string> = {};
    for (const scope of ["agent", "worker", "approver", "operator"]) {
      const agent = scope === "agent" ? ["--agent", "shopper"] : [];
      const said = ["--scope", scope, ...agent, "--why", "test", "--by", "test", "--url", url, "--json"];
      tokens[scope] = (JSON.parse(await this.#amends("tokens", "create", scope, ...said)) as { token: string }).token;
    }
    return { tokens, ledger: readFileSync(join(this.folder, "first.db")) };
  }

  /** Start the server, on the port that it had before. */
  async up(): Promise<void> {
    const args = ["-m", "amends", "serve", "app.py:rt", "--port", String(this.#port), "--json"];
    const server = spawn(PYTHON, args, { cwd: this.folder, env: this.#env(), stdio: ["ignore", "pipe", "pipe"] });
    this.#server = server;
    let problems = "";
    server.stderr.on("data", (part: Buffer) => (problems += part.toString()));
    for await (const line of createInterface({ input: server.stdout })) {
      this.url = (JSON.parse(line) as { url: string }).url;
      server.stdout.resume();
      return;
    }
    throw new Error(`the server does not start: ${problems}`);
  }

  /** Kill the server, as a crash would. */
  async down(): Promise<void> {
    const server = this.#server;
    if (!server || server.exitCode !== null || server.signalCode !== null) return;
    const ended = once(server, "exit");
    server.kill("SIGKILL");
    await ended;
  }

  async close(): Promise<void> {
    for (const child of this.#children) child.kill("SIGKILL");
    await this.down();
    rmSync(this.folder, { recursive: true, force: true });
  }

  client(scope: string, options: Partial<ConnectionOptions> = {}): Client {
    return new Client({ url: this.url, token: this.tokens[scope] ?? "", patience: 40, ...options });
  }

  /** Start build/test/bank.js, a worker in a process of its own. */
  async worker(env: Record<string, string> = {}): Promise<ChildProcess> {
    const given = { AMENDS_URL: this.url, AMENDS_TOKEN: this.tokens["worker"] ?? "", BOOK: this.book, ...env };
    const script = fileURLToPath(new URL("./bank.js", import.meta.url));
    const child = spawn(process.execPath, [script], {
      env: { ...this.#env(), ...given }, stdio: ["ignore", "pipe", "inherit"],
    });
    this.#children.push(child);
    for await (const line of createInterface({ input: child.stdout })) {
      if (line === "ready") return child;
    }
    throw new Error("the worker does not start");
  }

  /** What the tools have written. */
  get lines(): string[] {
    return existsSync(this.book) ? readFileSync(this.book, "utf-8").trim().split("\n").filter(Boolean) : [];
  }

  write(line: string): void {
    appendFileSync(this.book, `${line}\n`);
  }

  async #amends(...args: string[]): Promise<string> {
    const ran = await promisify(execFile)(PYTHON, ["-m", "amends", ...args], { cwd: this.folder, env: this.#env() });
    return ran.stdout;
  }

  #env(): NodeJS.ProcessEnv {
    return { ...process.env, XDG_STATE_HOME: join(this.folder, "state") };
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  return typeof address === "object" && address ? address.port : 0;
}

/** Wait until something holds; throw after a while. */
export async function until(holds: () => boolean | Promise<boolean>, what: string, seconds = 40): Promise<void> {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; ) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what}: not within ${seconds} s`);
}
