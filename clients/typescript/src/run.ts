/** A run that this client drives. */

import { LedgerError, NotFound, RunEnded, UsageError, Waiting } from "./errors.js";
import { errorOf, monotonic, type Asking, type Connection } from "./http.js";
import { AmendsError, Unreachable } from "./problem.js";
import type {
  AnswerRecord, Approval, ClaimRecord, Commit, Foreseen, MakeCall, MakeClaim, OpenChild, OpenedRun, Plan, Problem, RenewedRun, ReportRecord,
  ReportedRecord, Turn,
} from "./types.js";
import { performed, report } from "./work.js";

export type CallOptions = Omit<MakeCall, "tool" | "args">;
export type ClaimOptions = Omit<MakeClaim, "tool" | "args">;
export type ChildOptions = Omit<OpenChild, "id">;

export class Run {
  readonly id: string;
  /** Whether it was known before. */
  readonly resumed: boolean;
  readonly generation: number;
  readonly input: unknown;
  /** Seconds without a request until the server lets it go. */
  readonly client_lease: number;
  #over: boolean;
  readonly #connection: Connection;

  constructor(connection: Connection, opened: OpenedRun) {
    this.#connection = connection;
    this.id = opened.id;
    this.resumed = opened.resumed;
    this.generation = opened.generation;
    this.input = opened.input;
    this.client_lease = opened.client_lease;
    this.#over = opened.over;
  }

  /** Whether it has ended: it answers from its record only. */
  get over(): boolean {
    return this.#over;
  }

  /** Make the call that a model asked for; `text` of the answer is for the model. */
  async answer(tool: string, args: Record<string, unknown> = {}, options: CallOptions & Asking = {}): Promise<AnswerRecord> {
    const { signal, patience, timeout, ...more } = options;
    const body = { tool, args, ...more };
    return (await this.#connection.ask("answer", { path: this.#path, body, signal, patience, timeout })).data;
  }

  /** Do a call, and return its value. What is not done is thrown: `Held`, `BadArguments`, `ToolFailed`, `InDoubt` and so on. */
  async call<T = unknown>(
    tool: string, args: Record<string, unknown> = {}, options: CallOptions & Asking = {},
  ): Promise<T> {
    const answer = await this.answer(tool, args, options);
    if (answer.error) throw errorOf(problemOf(answer));
    return answer.value as T;
  }

  /** Return the approval that a call would wait for, requesting it if needed; null: it needs none. Start nothing. */
  async approval_for(
    tool: string, args: Record<string, unknown> = {}, options: Omit<Foreseen, "tool" | "args"> = {},
  ): Promise<Approval | null> {
    const body = { tool, args, ...options };
    return (await this.#connection.ask("approval_for", { path: this.#path, body })).data.approval;
  }

  /** Claim a call, to execute it in the client. Throw `Held` while a person is asked. */
  async begin(tool: string, args: Record<string, unknown> = {}, options: ClaimOptions = {}): Promise<Attempt> {
    const asked = monotonic();
    const body = { tool, args, ...options };
    const { status, data } = await this.#connection.ask("begin", { path: this.#path, body });
    if (status === 202) throw errorOf(problemOf(data as AnswerRecord));
    return new Attempt(this.#connection, data as ClaimRecord, asked, this.id);
  }

  /** Make a call here: claim it, run `body` once while its lease is renewed, report, and return its result. */
  async perform<T>(
    tool: string, args: Record<string, unknown>, body: (attempt: Attempt, signal: AbortSignal) => Promise<T> | T,
    options: ClaimOptions = {},
  ): Promise<T> {
    const attempt = await this.begin(tool, args, options);
    if (attempt.replayed) return attempt.result as T;
    const piece = { call: attempt.call, token: attempt.token ?? "", lease: attempt.lease ?? 0, route: this.id };
    let thrown: { error: unknown } | undefined;
    const outcome = await performed(this.#connection, piece, attempt.asked, async (signal) => {
      try {
        return await body(attempt, signal);
      } catch (error) {
        thrown = { error };
        throw error;
      }
    });
    await report(this.#connection, piece, outcome);
    if (thrown) throw thrown.error;
    if ("result" in outcome) return outcome.result as T;
    throw new Unreachable(outcome.error);
  }

  /** Make the calls of one turn of a model, in their order. */
  async answer_all(calls: Turn["calls"]): Promise<AnswerRecord[]> {
    return (await this.#connection.ask("answer_all", { path: this.#path, body: { calls } })).data.answers;
  }

  /** Execute a model's plan. */
  async execute(plan: Plan["plan"]): Promise<AnswerRecord[]> {
    return (await this.#connection.ask("execute", { path: this.#path, body: { plan } })).data.answers;
  }

  /** Return what a model that stops now leaves undone, in words for the model; an empty text: nothing. */
  async before_end(): Promise<string> {
    return (await this.#connection.ask("before_end", { path: this.#path, body: {} })).data.text ?? "";
  }

  /**
   * Commit: its effects stay; `output` is recorded with the run. Throw `Held` while a person is asked, `RolledBack` if
   * it had to be taken back.
   */
  async commit(options: Commit = {}): Promise<ReportRecord> {
    const { status, headers, data } = await this.#connection.ask("commit", { path: this.#path, body: options });
    if (status === 202) throw held(this.id, headers);
    this.#over = true;
    return data;
  }

  /**
   * Roll the run back: what has happened is compensated, newest first. While that is not finished (`rolling_back` in the
   * report), the service goes on with it by itself.
   */
  async rollback(why: string): Promise<ReportRecord> {
    const body = { why: why.slice(0, 2_000) || "no reason was given" };
    const { data } = await this.#connection.ask("rollback", { path: this.#path, body });
    this.#over = true;
    return data;
  }

  /** Let the run go as it is: open it again under the same id to go on. */
  async suspend(): Promise<ReportRecord> {
    const { data } = await this.#connection.ask("suspend", { path: this.#path, body: {} });
    this.#over = true;
    return data;
  }

  /** Renew the lease of the client. */
  async renew(asking: Asking = {}): Promise<RenewedRun> {
    return (await this.#connection.ask("renew", { path: this.#path, body: {}, ...asking })).data;
  }

  /** Return what the run did. */
  async report(): Promise<ReportRecord> {
    return (await this.#connection.ask("report", { path: this.#path })).data;
  }

  /** Open a run inside this one: end it with `commit` or `rollback` before this one ends. The same id finds the same child. */
  async open_child(id: string, options: ChildOptions & Asking = {}): Promise<Run> {
    const { signal, patience, timeout, ...more } = options;
    const body = { id, ...more };
    const { data, status } = await this.#connection.ask("open_child", { path: this.#path, body, signal, patience, timeout });
    return new Run(this.#connection, { ...data, resumed: data.resumed || status === 200 });
  }

  /**
   * Run a block inside this run: it commits when `body` returns, and is rolled back when it throws, or with this run.
   * A `Waiting` error leaves it open: the block around it suspends all of it.
   */
  async child<T>(id: string, body: (run: Run) => Promise<T> | T): Promise<T>;
  async child<T>(id: string, options: ChildOptions, body: (run: Run) => Promise<T> | T): Promise<T>;
  async child<T>(id: string, ...rest: unknown[]): Promise<T> {
    const body = rest.at(-1) as (run: Run) => Promise<T> | T;
    if (typeof body !== "function") throw new UsageError("run.child needs a function: run.child(id, async (child) => ...)");
    const child = await this.open_child(id, rest.length > 1 ? (rest[0] as ChildOptions) : {});
    let value: T;
    try {
      value = await body(child);
    } catch (error) {
      if (!(error instanceof Waiting)) await leave(child, error);
      throw error;
    }
    if (!child.over) await child.commit();
    return value;
  }

  /** Renew the client's lease until the function that is returned is called. */
  keep(): () => void {
    const pause = (this.client_lease / 3) * 1000;
    let timer: NodeJS.Timeout | undefined;
    let stopped = false;
    const later = () => {
      if (stopped) return;
      timer = setTimeout(() => void again(), pause);
      timer.unref();
    };
    const again = async () => {
      try {
        if (!this.#over) await this.renew({ patience: pause / 1000 });
      } catch (error) {
        if (error instanceof RunEnded || error instanceof NotFound) return; // the next request says so
      }
      later();
    };
    later();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }

  get #path(): { id: string } {
    return { id: this.id };
  }
}

/** A call that this client makes itself: have the effect with `key`, then report. */
export class Attempt {
  /** The id of the call. */
  readonly call: string;
  /** The idempotency key for the destination. */
  readonly key: string;
  readonly attempt: number;
  /** Whether it was answered from the record: make nothing, `result` is there. */
  readonly replayed: boolean;
  readonly result: unknown;
  /** Seconds without a report or a renewal until it is in doubt; null if it was replayed. */
  readonly lease: number | null;
  readonly token: string | null;
  /** When it was asked for, on this process's own clock. */
  readonly asked: number;
  readonly #connection: Connection;
  readonly #run: string;
  readonly #spent: Record<string, number> = {};

  constructor(connection: Connection, claim: ClaimRecord, asked: number, run = "") {
    this.#connection = connection;
    this.#run = run;
    this.asked = asked;
    this.call = claim.call;
    this.key = claim.key;
    this.attempt = claim.attempt;
    this.replayed = claim.replayed;
    this.result = claim.result;
    this.lease = claim.lease;
    this.token = claim.token;
  }

  /** Note what it really cost; several amounts add up. Its report tells the service. */
  spent(amount: number, unit = "usd"): void {
    this.#spent[unit] = (this.#spent[unit] ?? 0) + amount;
  }

  /** Report that it happened. */
  succeed(result: unknown = null): Promise<ReportedRecord> {
    return report(this.#connection, this.#piece, { result, spent: this.#spent });
  }

  /** Report an error. `no_effect`: it certainly changed nothing; `doubt`: nobody knows. */
  fail(error: string, how: { no_effect?: boolean; doubt?: boolean } = {}): Promise<ReportedRecord> {
    return report(this.#connection, this.#piece, { error, ...how, spent: this.#spent });
  }

  /** Renew its lease. */
  async renew(): Promise<ReportedRecord> {
    const { call, token, route } = this.#piece;
    return (await this.#connection.ask("renew_claim", { path: { call }, body: { token }, route })).data;
  }

  get #piece() {
    return { call: this.call, token: this.token ?? "", lease: this.lease ?? 0, route: this.#run };
  }
}

/** End a run whose block has thrown. */
export async function leave(run: Run, error: unknown): Promise<void> {
  if (run.over || isCutOff(error)) return;
  try {
    if (error instanceof Waiting) await run.suspend();
    else await run.rollback(error instanceof Error ? `${error.name}: ${error.message}` : String(error));
  } catch (failed) {
    if (failed instanceof RunEnded || isCutOff(failed)) return; // the first error says more
    if (failed instanceof Error && failed.cause === undefined) failed.cause = error;
    throw failed;
  }
}

/** Return whether the run is left as it is after this error: no server answers, or the record cannot be kept. */
export function isCutOff(error: unknown): boolean {
  return error instanceof Unreachable || error instanceof LedgerError;
}

function held(run: string, headers: Headers): AmendsError {
  const approval = decodeURIComponent((headers.get("location") ?? "").split("/").at(-1) ?? "");
  return errorOf({
    type: "urn:amends:error:Held", title: "Held", status: 202, code: "Held",
    detail: `run ${run} waits until a person has decided${approval ? ` approval ${approval}` : ""}`,
    hint: "open the run again under the same id once it is decided",
    run_id: run, approval_id: approval || null,
  });
}

/** Return the document of what an answer says: there the code is in lower case. */
function problemOf(answer: AnswerRecord): Problem {
  const { code, message, hint, ...facts } = answer.error as Record<string, unknown>;
  const name = String(code).replace(/(?:^|_)(\w)/g, (_, first: string) => first.toUpperCase());
  const approval = (facts["approval"] as { id?: string } | undefined)?.id;
  return {
    ...facts,
    type: `urn:amends:error:${name}`, title: name, status: 409, code: name, detail: String(message),
    hint: String(hint ?? ""), text: answer.text, call_id: answer.call?.id ?? null,
    ...(approval ? { approval_id: approval } : {}),
  };
}
