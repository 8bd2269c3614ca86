/** A worker: this process performs tools, wherever the run that needs them is driven. */

import type { Client } from "./client.js";
import { BadDeclaration, Forbidden, NotFound, Unauthorized, UsageError } from "./errors.js";
import { checkedSeconds, monotonic, sleep } from "./http.js";
import { AmendsError, NoEffect } from "./problem.js";
import type { Tool, Work } from "./tool.js";
import type { PieceRecord } from "./types.js";
import { performed, report } from "./work.js";

export interface ServeOptions {
  /** What people call this worker. */
  name?: string;
  /** Pieces of work at once. Default 4. */
  concurrency?: number;
  /** Seconds that one request waits for work. Default 10. */
  wait?: number;
  /** Seconds after `stop` in which reports are still repeated. Default 30. */
  drain?: number;
  /** Signals of the process that stop the worker. Default SIGTERM and SIGINT. */
  signals?: NodeJS.Signals[];
  /** Where it tells what it cannot return to anybody. Default `console.error`. */
  log?: (message: string) => void;
}

const PAUSE_S = 0.2;
const PAUSE_S_MAX = 5;

/** Perform these tools until `stop()`, SIGTERM or SIGINT. Await `worker.done`, which throws if the worker cannot work. */
export function serve(client: Client, tools: readonly Tool[], options: ServeOptions = {}): Worker {
  return new Worker(client, tools, options);
}

export class Worker {
  /** Resolved when the tools are known to the service. */
  readonly ready: Promise<void>;
  /** Resolved when the worker has stopped and everything that it had begun is reported. */
  readonly done: Promise<void>;
  readonly #client: Client;
  readonly #tools: ReadonlyMap<string, Tool>;
  readonly #name: string;
  readonly #concurrency: number;
  readonly #wait: number;
  readonly #drain: number;
  readonly #log: (message: string) => void;
  readonly #busy = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  /** By which a proxy sends all its requests to one server: that one knows it. */
  readonly #route = `worker-${crypto.randomUUID()}`;
  #id = "";
  #until = Infinity;

  constructor(client: Client, tools: readonly Tool[], options: ServeOptions) {
    this.#client = client;
    this.#tools = new Map(tools.map((one) => [one.declared.name, one]));
    if (!tools.length || this.#tools.size !== tools.length) {
      throw new BadDeclaration(tools.length ? "two tools have the same name" : "a worker needs a tool");
    }
    this.#name = options.name ?? "";
    this.#concurrency = options.concurrency ?? 4;
    if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1) {
      throw new UsageError(`concurrency is a whole number from 1, not ${options.concurrency}`);
    }
    this.#wait = checkedSeconds("wait", options.wait ?? 10);
    this.#drain = checkedSeconds("drain", options.drain ?? 30);
    this.#log = options.log ?? ((message) => console.error(`amends worker: ${message}`));
    const registered = this.#register(true);
    this.ready = registered;
    this.ready.catch(() => undefined); // `done` has it too
    this.done = this.#main(registered, options.signals ?? ["SIGTERM", "SIGINT"]);
  }

  /** Take no more work, finish what was begun, and return when it is reported. */
  async stop(): Promise<void> {
    this.#stop();
    await this.done;
  }

  #stop(): void {
    if (this.#stopping.signal.aborted) return;
    this.#until = monotonic() + this.#drain;
    this.#stopping.abort();
    // The request for work is not cut off: what it brings would be in doubt. The service answers it now.
    if (this.#id) this.#client.connection.ask("leave", { path: { id: this.#id }, patience: 1, route: this.#route }).catch(() => undefined);
  }

  async #main(registered: Promise<void>, signals: NodeJS.Signals[]): Promise<void> {
    const stop = () => this.#stop();
    for (const name of signals) process.once(name, stop); // a second signal ends the process
    try {
      await registered;
      await this.#takeAll();
    } finally {
      await Promise.all(this.#busy);
      for (const name of signals) process.off(name, stop);
    }
  }

  async #register(first: boolean): Promise<void> {
    const tools = [...this.#tools.values()].map((one) => one.declared);
    for (let pause = PAUSE_S; ; pause = Math.min(2 * pause, PAUSE_S_MAX)) {
      try {
        const patience = first ? this.#client.connection.patience : 0;
        const body = { name: this.#name, tools };
        const { data } = await this.#client.connection.ask("register", { body, patience, route: this.#route });
        this.#id = data.id;
        return;
      } catch (error) {
        if (first || isFinal(error) || this.#stopping.signal.aborted) throw error;
        await this.#pause(pause);
      }
    }
  }

  async #takeAll(): Promise<void> {
    let pause = PAUSE_S;
    while (!this.#stopping.signal.aborted) {
      if (this.#busy.size >= this.#concurrency) {
        await Promise.race(this.#busy);
        continue;
      }
      const asked = monotonic();
      try {
        const { data } = await this.#client.connection.ask("take", {
          path: { id: this.#id }, body: { wait: this.#wait }, patience: 0, timeout: this.#wait + 15, route: this.#route,
        });
        pause = PAUSE_S;
        if (data.work) this.#begin(data.work, asked);
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        if (error instanceof NotFound) await this.#register(false);
        else if (isFinal(error)) throw error;
        else {
          this.#log(`no work can be asked for, trying again: ${String(error)}`);
          await this.#pause(pause);
          pause = Math.min(2 * pause, PAUSE_S_MAX);
        }
      }
    }
  }

  #begin(piece: PieceRecord, asked: number): void {
    const going = this.#perform(piece, asked).finally(() => this.#busy.delete(going));
    this.#busy.add(going);
  }

  async #perform(taken: PieceRecord, asked: number): Promise<void> {
    const piece = { ...taken, route: this.#route };
    const outcome = await performed(this.#client.connection, piece, asked, (signal) => this.#body(piece, signal));
    try {
      await report(this.#client.connection, piece, outcome, () => monotonic() > this.#until);
    } catch (error) {
      this.#log(`the report about ${piece.phase} of ${piece.tool} (${piece.call}) was not taken: ${String(error)}`);
    }
  }

  async #body(piece: PieceRecord, signal: AbortSignal): Promise<unknown> {
    const tool = this.#tools.get(piece.tool);
    const { run, call, key, attempt } = piece;
    const work: Work = { run, call, tool: piece.tool, key, attempt, signal };
    switch (piece.phase) {
      case "execute":
        if (tool) return tool.execute(piece.args, work);
        break;
      case "compensate":
        if (tool?.compensate) {
          await tool.compensate(piece.args, { ...work, result: piece.result });
          return null;
        }
        break;
      case "probe":
        if (tool?.probe) return tool.probe(piece.args, work);
        break;
    }
    throw new NoEffect(`this worker has no ${piece.phase} of ${piece.tool}`);
  }

  async #pause(seconds: number): Promise<void> {
    await sleep(seconds, this.#stopping.signal).catch(() => undefined);
  }
}

/** Return whether asking again cannot help. */
function isFinal(error: unknown): boolean {
  if (error instanceof Unauthorized || error instanceof Forbidden || error instanceof UsageError) return true;
  return !(error instanceof AmendsError) || (error.status === 409 && error.retry_after === undefined);
}
