/** A piece of work that this process performs: its lease, how its end is judged, and the report. */

import { InDoubt, LeaseLost, NotFound } from "./errors.js";
import { Connection, monotonic, NEVER_SENT, sleep } from "./http.js";
import { encode } from "./json.js";
import { AmendsError, NoEffect, Unreachable } from "./problem.js";
import type { ReportedRecord } from "./types.js";

/** Names one piece of work, and gives the right to report about it. */
export interface Piece {
  call: string;
  token: string;
  lease: number;
  /** What a proxy with several servers routes by. */
  route?: string;
}

/** How a piece of work ended. */
export type Outcome = ({ result: unknown } | { error: string; no_effect?: boolean; doubt?: boolean }) & {
  /** What it really cost, by unit. */
  spent?: Record<string, number>;
};

/** How often a lease is renewed within its length. */
const RENEWALS = 3;
const ERROR_CHARS_MAX = 10_000;
const REPORT_PAUSE_S = 1;

/**
 * The right to have an effect, for a time. It is counted on this process's own clock from before it was asked for, so it
 * never lasts longer here than where it was granted. It is renewed until `end`; when it is over, `signal` is aborted.
 */
export class WorkLease {
  readonly #connection: Connection;
  readonly #piece: Piece;
  readonly #controller = new AbortController();
  #until: number;
  #over: NodeJS.Timeout | undefined;
  #next: NodeJS.Timeout | undefined;
  #ended = false;

  /** `asked`: when the request that brought the piece was sent. */
  constructor(connection: Connection, piece: Piece, asked: number) {
    this.#connection = connection;
    this.#piece = piece;
    this.#until = asked + piece.lease;
  }

  /** Aborted when the lease is over: stop, if you can. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Begin to renew. Throw `LeaseLost` if it is over already: nothing may be started. */
  async begin(): Promise<void> {
    // After a long wait for work most of the lease may be gone, as far as this process can know.
    if (this.#until - monotonic() < (this.#piece.lease * (RENEWALS - 1)) / RENEWALS) await this.#renew();
    if (monotonic() >= this.#until) throw new LeaseLost("the work lease was over before the work began");
    this.#watch();
    this.#later();
  }

  /** Stop renewing: the body has ended. */
  end(): void {
    this.#ended = true;
    clearTimeout(this.#over);
    clearTimeout(this.#next);
  }

  async #renew(): Promise<void> {
    const asked = monotonic();
    const left = Math.max(this.#until - asked, this.#piece.lease / RENEWALS);
    const { data } = await this.#connection.ask("renew_claim", {
      path: { call: this.#piece.call },
      body: { token: this.#piece.token },
      patience: left,
      timeout: left,
      ...routed(this.#piece),
    });
    this.#until = asked + Math.min(data.lease ?? this.#piece.lease, this.#piece.lease);
  }

  #later(): void {
    this.#next = setTimeout(() => void this.#renewed(), (this.#piece.lease / RENEWALS) * 1000);
  }

  async #renewed(): Promise<void> {
    try {
      await this.#renew();
    } catch (error) {
      // Anything else passes, or the clock ends it.
      if (error instanceof LeaseLost || error instanceof NotFound) this.#lose(error);
    }
    if (!this.#ended && !this.signal.aborted) {
      this.#watch();
      this.#later();
    }
  }

  #watch(): void {
    clearTimeout(this.#over);
    const left = Math.max(0, this.#until - monotonic());
    this.#over = setTimeout(() => this.#lose(new LeaseLost("the work lease could not be renewed in time")), left * 1000);
  }

  #lose(error: AmendsError): void {
    if (!this.#ended) this.#controller.abort(error);
    clearTimeout(this.#over);
    clearTimeout(this.#next);
  }
}

/** Perform a piece of work under its lease, and return how it ended. Never throws. */
export async function performed(
  connection: Connection, piece: Piece, asked: number, body: (signal: AbortSignal) => unknown,
): Promise<Outcome> {
  const lease = new WorkLease(connection, piece, asked);
  try {
    await lease.begin();
  } catch (error) {
    return { error: `not begun: ${textOf(error)}`, no_effect: true };
  }
  try {
    const result = await body(lease.signal);
    try {
      encode(result);
    } catch (error) {
      return { error: `it happened, but its result cannot be reported: ${textOf(error)}`, doubt: true };
    }
    return { result };
  } catch (error) {
    return { error: textOf(error), ...judged(error) };
  } finally {
    lease.end();
  }
}

function routed(piece: Piece): { route?: string } {
  return piece.route === undefined ? {} : { route: piece.route };
}

/**
 * Report how a piece of work ended, again and again until it is answered: a repeated report gets the same answer.
 * `stopped` returns whether to give up now; silence is then doubt.
 */
export async function report(
  connection: Connection, piece: Piece, outcome: Outcome, stopped: () => boolean = () => false,
): Promise<ReportedRecord> {
  const path = { call: piece.call };
  const { token } = piece;
  for (let said = outcome; ; ) {
    try {
      if ("result" in said) {
        return (await connection.ask("succeed", { path, body: { token, ...said }, ...routed(piece) })).data;
      }
      return (await connection.ask("fail", { path, body: { token, ...said }, ...routed(piece) })).data;
    } catch (error) {
      if (!(error instanceof AmendsError) || stopped()) throw error;
      if (isPassing(error)) {
        await sleep(REPORT_PAUSE_S);
      } else if ("result" in said && [400, 413, 422].includes(error.status || 400)) {
        const { spent = {} } = outcome;
        said = { error: `it happened, but its result was refused: ${textOf(error)}`, doubt: true, spent };
      } else {
        throw error;
      }
    }
  }
}

function isPassing(error: AmendsError): boolean {
  return error instanceof Unreachable || error.retry_after !== undefined || error.status >= 500 || error.status === 408;
}

/** Return what an error says about the effect: certainly none, nobody knows, or nothing special. */
export function judged(error: unknown): { no_effect?: true; doubt?: true } {
  if (error instanceof NoEffect) return { no_effect: true };
  const found = [...chain(error)].map(said);
  if (found.includes("doubt")) return { doubt: true };
  return found.includes("never sent") ? { no_effect: true } : {};
}

function* chain(error: unknown): Generator<unknown> {
  for (let one = error, depth = 0; one && depth < 16; one = (one as Error).cause, depth += 1) {
    if (one instanceof AggregateError) for (const part of one.errors) yield* chain(part);
    else yield one;
  }
}

function said(error: unknown): "doubt" | "never sent" | "" {
  if (typeof error !== "object" || error === null) return "";
  if (error instanceof InDoubt || error instanceof LeaseLost) return "doubt";
  const { name, code, status, statusCode, response } = error as Record<string, unknown>;
  if (name === "AbortError" || name === "TimeoutError") return "doubt";
  const http = [(response as Record<string, unknown> | undefined)?.["status"], status, statusCode].find(
    (one): one is number => typeof one === "number" && one >= 100 && one < 600,
  );
  if (http !== undefined) {
    if (http >= 500 || http === 408 || http === 499) return "doubt";
    return http < 400 && ![304, 307, 308].includes(http) ? "doubt" : "";
  }
  if (typeof code !== "string") return "";
  if (NEVER_SENT.has(code)) return "never sent";
  return /^(UND_ERR_|ECONN|EPIPE$|ETIMEDOUT$|ESOCKET|HPE_)/.test(code) ? "doubt" : "";
}

function textOf(error: unknown): string {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return text.slice(0, ERROR_CHARS_MAX) || "an error without a text";
}
