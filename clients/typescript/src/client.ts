/** The client: the verbs of the runtime, over HTTP. */

import { UsageError } from "./errors.js";
import { Connection, monotonic, sleep, type Asking, type ConnectionOptions } from "./http.js";
import { AmendsError, Unreachable } from "./problem.js";
import { leave, Run } from "./run.js";
import type { Event, OpenRun, Operations, Page } from "./types.js";

export type OpenOptions = Omit<OpenRun, "id">;
type Body<N extends keyof Operations> = Operations[N]["body"];
type Answer<N extends keyof Operations> = Promise<Operations[N]["answer"]>;
type Listing = { [N in keyof Operations]: Operations[N]["answer"] extends Page<unknown> ? N : never }[keyof Operations];
type Items<N extends Listing> = AsyncGenerator<Operations[N]["answer"] extends Page<infer T> ? T : never, void, undefined>;
type Query<N extends keyof Operations> = Operations[N]["query"];

/** Which events, and whether to go on when there are no more. */
export type EventsOptions = Query<"events"> & { follow?: boolean; signal?: AbortSignal };

const RECONNECT_S = 1;

export class Client {
  /** Requests by the route's name, for what has no method here. */
  readonly connection: Connection;

  constructor(options: ConnectionOptions) {
    this.connection = new Connection(options);
  }

  // ---- Runs

  /** Open a run, or resume the run with this id. Whoever opens it ends it: `commit`, `rollback` or `suspend`. */
  async open(id: string, options: OpenOptions & Asking = {}): Promise<Run> {
    const { signal, patience, timeout, ...more } = options;
    const { data, status } = await this.connection.ask("open", {
      body: { id, ...more }, signal, patience, timeout, route: id,
    });
    return new Run(this.connection, { ...data, resumed: data.resumed || status === 200 });
  }

  /**
   * Run a block: it commits when `body` returns, and rolls back when it throws. `Waiting` errors (`Held`, `Busy`,
   * `Suspended`) leave it open; so does a server that cannot be reached. Start it again with the same id to go on: what
   * was done before is answered from the record.
   */
  async run<T>(id: string, body: (run: Run) => Promise<T> | T): Promise<T>;
  async run<T>(id: string, options: OpenOptions, body: (run: Run) => Promise<T> | T): Promise<T>;
  async run<T>(id: string, ...rest: unknown[]): Promise<T> {
    const body = rest.at(-1) as (run: Run) => Promise<T> | T;
    if (typeof body !== "function") throw new UsageError("client.run needs a function: client.run(id, async (run) => ...)");
    const run = await this.open(id, rest.length > 1 ? (rest[0] as OpenOptions) : {});
    const stop = run.keep();
    try {
      let value: T;
      try {
        value = await body(run);
      } catch (error) {
        await leave(run, error);
        throw error;
      }
      if (!run.over) await run.commit();
      return value;
    } finally {
      stop();
    }
  }

  /** Return one run, as the ledger has it. */
  info = (id: string): Answer<"run"> => this.#of("run", { id });
  /** Return what a run did. */
  report = (id: string): Answer<"report"> => this.#of("report", { id });
  /** List runs, newest first. */
  runs = (query: Query<"runs"> = {}): Items<"runs"> => this.#all("runs", query);
  /** Describe the tools as a model gets them. */
  async schemas(style: Query<"schemas">["style"] = "openai", options: { strict?: boolean } = {}): Promise<Record<string, unknown>[]> {
    return (await this.connection.ask("schemas", { query: { style, ...options } })).data.tools;
  }
  /** Return the kind of a tool, and whether a model may repeat its calls on purpose. */
  kind_of = (tool: string): Answer<"kind_of"> => this.#of("kind_of", { id: tool });
  /** Give a new run to an agent of the server; it goes on after `wait` seconds, and its report tells what it came to. */
  start = (agent: string, body: Body<"start">): Answer<"start"> => this.#of("start", { id: agent }, body);
  /** Check a model's plan before it is executed. */
  check = (plan: Body<"check">["plan"]): Answer<"check"> => this.#of("check", {}, { plan });
  /** List the registered workers. */
  workers = (query: Query<"workers"> = {}): Items<"workers"> => this.#all("workers", query);

  // ---- For people

  /** List everything that waits for a person. */
  inbox = (query: Query<"inbox"> = {}): Items<"inbox"> => this.#all("inbox", query);
  /** List requests for approval. */
  approvals = (query: Query<"approvals"> = {}): Items<"approvals"> => this.#all("approvals", query);
  approval = (id: string): Answer<"approval"> => this.#of("approval", { id });
  /** Return what a request can be compared with: the last approved call of its tool, and what is usual. */
  precedents = (id: string): Answer<"precedents"> => this.#of("precedents", { id });
  /** Approve exactly what was shown: `digest` of the approval. */
  approve = (id: string, body: Body<"approve">): Answer<"approve"> => this.#of("approve", { id }, body);
  reject = (id: string, body: Body<"reject">): Answer<"reject"> => this.#of("reject", { id }, body);
  edit = (id: string, body: Body<"edit">): Answer<"edit"> => this.#of("edit", { id }, body);
  withdraw = (id: string, body: Body<"withdraw">): Answer<"withdraw"> => this.#of("withdraw", { id }, body);
  ask_again = (id: string, body: Body<"ask_again">): Answer<"ask_again"> => this.#of("ask_again", { id }, body);
  /** Decide by the one-time link of a message. */
  redeem = (body: Body<"redeem">): Answer<"redeem"> => this.#of("redeem", {}, body);
  bypass = (id: string, body: Body<"bypass">): Answer<"bypass"> => this.#of("bypass", { id }, body);
  delegate = (body: Body<"delegate">): Answer<"delegate"> => this.#of("delegate", {}, body);
  /** List who is on call now, or at a time. */
  oncall = (query: Query<"oncall"> = {}): Answer<"oncall"> => this.#of("oncall", {}, undefined, query);
  /** List gaps and overlaps in the on-call table, and people on call who may not decide. */
  check_oncall = (query: Query<"check_oncall"> = {}): Answer<"check_oncall"> => this.#of("check_oncall", {}, undefined, query);
  /** List calls, newest first. */
  calls = (query: Query<"calls"> = {}): Items<"calls"> => this.#all("calls", query);
  call = (id: string): Answer<"call"> => this.#of("call", { id });
  /** Return the text for a model about a call. */
  told = (id: string): Answer<"told"> => this.#of("told", { id });
  preview = (id: string): Answer<"preview"> => this.#of("preview", { id });
  /** List calls whose outcome is unknown. */
  doubts = (query: Query<"doubts"> = {}): Items<"doubts"> => this.#all("doubts", query);
  /** Probe a call. */
  probe = (id: string): Answer<"probe"> => this.#of("probe", { id }, {});
  /** Settle a doubt. */
  resolve = (id: string, body: Body<"resolve">): Answer<"resolve"> => this.#of("resolve", { id }, body);
  retry = (id: string, body: Body<"retry">): Answer<"retry"> => this.#of("retry", { id }, body);
  accept = (id: string, body: Body<"accept">): Answer<"accept"> => this.#of("accept", { id }, body);
  decide = (id: string, body: Body<"decide">): Answer<"decide"> => this.#of("decide", { id }, body);
  /** Show what a rollback would do; its `hash` goes into `rollback`. */
  plan_rollback = (id: string): Answer<"plan_rollback"> => this.#of("plan_rollback", { id });
  /** Take a run back, by the plan that was shown: an operator's verb. The client of a run has `run.rollback`. */
  rollback = (id: string, body: Body<"rollback">): Answer<"rollback"> => this.#of("rollback", { id }, body);
  abandon = (id: string, body: Body<"abandon">): Answer<"abandon"> => this.#of("abandon", { id }, body);
  finish = (id: string, body: Body<"finish">): Answer<"finish"> => this.#of("finish", { id }, body);
  /** Open a new run that shares the calls of this one up to `at`. */
  fork = (id: string, body: Body<"fork">): Answer<"fork"> => this.#of("fork", { id }, body);
  /** Compare two runs. */
  compare = (left: string, right: string): Answer<"compare"> => this.#of("compare", {}, undefined, { left, right });
  reconcile = (body: Body<"reconcile">): Answer<"reconcile"> => this.#of("reconcile", {}, body);
  test_rules = (body: Body<"test_rules">): Answer<"test_rules"> => this.#of("test_rules", {}, body);
  /** Return a page of runs with their sums, and counts by state. */
  overview = (query: Query<"overview"> = {}): Answer<"overview"> => this.#of("overview", {}, undefined, query);
  budgets = (query: Query<"budgets"> = {}): Items<"budgets"> => this.#all("budgets", query);
  costs = (query: Query<"costs"> = {}): Items<"costs"> => this.#all("costs", query);
  /** List budgets with the newest calls that were charged to them. */
  spending = (query: Query<"spending"> = {}): Items<"spending"> => this.#all("spending", query);
  /** Return how each tool performed in the newest calls. */
  tool_use = (query: Query<"tool_use"> = {}): Items<"tool_use"> => this.#all("tool_use", query);
  /** Describe each declared tool. */
  describe_tools = (query: Query<"describe_tools"> = {}): Items<"describe_tools"> => this.#all("describe_tools", query);
  /** List the runs that have not ended, newest first. */
  unfinished = (query: Query<"unfinished"> = {}): Items<"unfinished"> => this.#all("unfinished", query);
  locks = (query: Query<"locks"> = {}): Items<"locks"> => this.#all("locks", query);
  halts = (query: Query<"halts"> = {}): Items<"halts"> => this.#all("halts", query);
  /** Halt: start nothing from now on. */
  halt = (body: Body<"halt">): Answer<"halt"> => this.#of("halt", {}, body);
  unhalt = (query: Query<"unhalt">): Answer<"unhalt"> => this.#of("unhalt", {}, undefined, query);
  permits = (query: Query<"permits"> = {}): Items<"permits"> => this.#all("permits", query);
  permit = (body: Body<"permit">): Answer<"permit"> => this.#of("permit", {}, body);
  revoke = (id: string, query: Query<"revoke">): Answer<"revoke"> => this.#of("revoke", { id }, undefined, query);
  tokens = (query: Query<"tokens"> = {}): Items<"tokens"> => this.#all("tokens", query);
  create_token = (body: Body<"create_token">): Answer<"create_token"> => this.#of("create_token", {}, body);
  revoke_token = (id: string, query: Query<"revoke_token">): Answer<"revoke_token"> =>
    this.#of("revoke_token", { id }, undefined, query);

  // ---- For auditors and machines

  /** Return every setting of the service with its origin, and what is suspicious about them. */
  settings = (): Answer<"settings"> => this.#of("settings", {});
  schema = (): Answer<"schema"> => this.#of("schema", {});
  /** Begin to remove the payloads of runs that ended long ago; `long_work` tells how far it is. */
  gc = (body: Body<"gc">): Answer<"gc"> => this.#of("gc", {}, body);
  /** Begin to erase everything recorded about one person; `long_work` tells how far it is. */
  erase = (body: Body<"erase">): Answer<"erase"> => this.#of("erase", {}, body);
  /** Begin to encrypt everything with the newest key. */
  reencrypt = (body: Body<"reencrypt"> = {}): Answer<"reencrypt"> => this.#of("reencrypt", {}, body);
  /** Begin to take over abandoned runs, as a worker does. */
  recover = (body: Body<"recover"> = {}): Answer<"recover"> => this.#of("recover", {}, body);
  /** Return the last event: its `place` is where to follow from. */
  newest_event = (query: Query<"newest_event"> = {}): Answer<"newest_event"> => this.#of("newest_event", {}, undefined, query);
  /** List the newest events, newest first; `next` says where the search goes on. */
  recent_events = (query: Query<"recent_events"> = {}): Answer<"recent_events"> =>
    this.#of("recent_events", {}, undefined, query);
  /** Begin to replay runs against an agent of the server; `long_work` tells what each came to. */
  replay_each = (agent: string, body: Body<"replay_each">): Answer<"replay_each"> => this.#of("replay_each", { id: agent }, body);
  /** Begin to verify the record; `long_work` tells how far it is. */
  verify = (body: Body<"verify"> = {}): Answer<"verify"> => this.#of("verify", {}, body);
  long_work = (id: string): Answer<"long_work"> => this.#of("long_work", { id });
  checkpoint = (body: Body<"checkpoint"> = {}): Answer<"checkpoint"> => this.#of("checkpoint", {}, body);
  /** List the newest checkpoints, newest first. */
  checkpoints = (query: Query<"checkpoints"> = {}): Answer<"checkpoints"> => this.#of("checkpoints", {}, undefined, query);
  /** Export runs as a file that anybody can check. */
  export = (body: Body<"export">): Answer<"export"> => this.#of("export", {}, body);
  load = (bundle: Uint8Array, query: Query<"load"> = {}): Answer<"load"> => this.#of("load", {}, bundle, query);
  openapi = (): Answer<"openapi"> => this.#of("openapi", {});
  health = (): Answer<"health"> => this.#of("health", {});
  ready = (): Answer<"ready"> => this.#of("ready", {});
  metrics = (): Answer<"metrics"> => this.#of("metrics", {});

  /** List events, oldest first; with `follow` go on with those to come, through reconnections, until `signal`. */
  async *events(options: EventsOptions = {}): AsyncGenerator<Event, void, undefined> {
    const { follow, signal, ...query } = options;
    if (!follow) {
      yield* this.#all("events", query);
      return;
    }
    let after = query.after ?? "";
    let until = monotonic() + this.connection.patience;
    while (!signal?.aborted) {
      try {
        const { after: _, ...rest } = query;
        for await (const [place, event] of told(await this.connection.stream(rest, after, signal))) {
          after = place || after;
          until = monotonic() + this.connection.patience;
          yield event;
        }
      } catch (error) {
        if (signal?.aborted) return;
        const passes = error instanceof Unreachable || (error instanceof AmendsError && error.retry_after !== undefined);
        if (!(passes || error instanceof TypeError) || monotonic() > until) throw error;
      }
      await sleep(RECONNECT_S, signal).catch(() => undefined);
    }
  }

  async #of<N extends keyof Operations>(
    name: N, path: Operations[N]["path"], body?: Operations[N]["body"], query?: Operations[N]["query"],
  ): Answer<N> {
    return (await this.connection.ask(name, { path, body, query })).data;
  }

  async *#all<N extends Listing>(name: N, query: Operations[N]["query"]): Items<N> {
    for (let after: string | null | undefined = (query as { after?: string }).after; after !== null; ) {
      const page: Page<unknown> = (await this.connection.ask(name, { query: { ...query, after } as Operations[N]["query"] }))
        .data as Page<unknown>;
      yield* page.items as never[];
      after = page.next;
    }
  }
}

/** Read server-sent events, each with the place to go on after. */
async function* told(answer: Response): AsyncGenerator<[string, Event]> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const part of answer.body ?? []) {
    text += decoder.decode(part as Uint8Array, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const value = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = value("data");
      if (data === undefined) continue;
      if (value("event") === "problem") throw new AmendsError(JSON.parse(data));
      yield [value("id") ?? "", JSON.parse(data) as Event];
    }
  }
}
