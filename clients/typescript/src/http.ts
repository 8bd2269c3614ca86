/** Requests: sent again with backoff while that is safe and may help, and answered with a record or a typed error. */

import { ERRORS, Busy, LedgerUnavailable, TooMany, UsageError } from "./errors.js";
import { encode } from "./json.js";
import { AmendsError, Unreachable } from "./problem.js";
import { ROUTES, type Operations, type Problem } from "./types.js";

export interface ConnectionOptions {
  /** Where the service is, for instance `http://127.0.0.1:8642`. */
  url: string;
  /** The token, as `amends tokens create` printed it. */
  token: string;
  /** Which tenant: only for an operator's token without a tenant of its own. */
  tenant?: string;
  /** For how many seconds a request that may be repeated is repeated. Default 60. */
  patience?: number;
  /** After how many seconds without an answer a request counts as lost. Default 60. */
  timeout?: number;
  /** Instead of the global `fetch`. */
  fetch?: typeof fetch;
  /** What a proxy with several servers routes by (`X-Amends-Route`), instead of the id of the run that a request is about. */
  route?: string;
}

/** What a request may say besides its path, query and body. */
export interface Asking {
  signal?: AbortSignal;
  patience?: number;
  timeout?: number;
  /** The id of the run that it is about, if its path does not name it. */
  route?: string;
}

type Given<N extends keyof Operations> = Asking & {
  path?: Operations[N]["path"];
  query?: Operations[N]["query"];
  body?: Operations[N]["body"];
};

export interface Answered<T> {
  status: number;
  headers: Headers;
  data: T;
}

/**
 * POST routes that a client may send twice: a run is found by its id, a call by its key, a report by its token, and
 * work that was handed out is not handed out again.
 */
const REPEATABLE: ReadonlySet<string> = new Set<keyof Operations>([
  "open", "open_child", "start", "approval_for", "answer", "answer_all", "execute", "check", "before_end", "test_rules", "begin", "commit", "rollback", "renew", "suspend", "succeed", "fail",
  "renew_claim", "register", "take", "verify", "export",
]);
/** Codes of errors of the network after which the request was certainly not sent. */
export const NEVER_SENT: ReadonlySet<string> = new Set([
  "ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "ERR_INVALID_URL", "UND_ERR_CONNECT_TIMEOUT",
  "CERT_HAS_EXPIRED", "DEPTH_ZERO_SELF_SIGNED_CERT", "SELF_SIGNED_CERT_IN_CHAIN", "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  "ERR_TLS_CERT_ALTNAME_INVALID",
]);
const BACKOFF_S = 0.1;
const BACKOFF_S_MAX = 5;

export class Connection {
  readonly url: string;
  readonly patience: number;
  readonly timeout: number;
  readonly #token: string;
  readonly #tenant: string | undefined;
  readonly #fetch: typeof fetch;
  readonly #route: string | undefined;

  constructor(options: ConnectionOptions) {
    this.url = checkedUrl(options?.url);
    if (typeof options.token !== "string" || !/^[\x21-\x7e]+$/.test(options.token)) {
      throw new UsageError("the client needs a token", { hint: "amends tokens create NAME --scope agent --agent AGENT --why ..." });
    }
    this.#token = options.token;
    this.#tenant = options.tenant;
    this.patience = checkedSeconds("patience", options.patience ?? 60);
    this.timeout = checkedSeconds("timeout", options.timeout ?? 60);
    this.#fetch = options.fetch ?? fetch;
    if (options.route !== undefined && !/^[\x20-\x7e]+$/.test(options.route)) {
      throw new UsageError("route is a text of printable ASCII characters");
    }
    this.#route = options.route;
  }

  /** Ask one route, again if that is safe and may help, and return its answer; throw a typed error. */
  async ask<N extends keyof Operations>(name: N, given: Given<N> = {}): Promise<Answered<Operations[N]["answer"]>> {
    const { method } = ROUTES[name];
    const url = this.#address(name, given.path as Record<string, string> | undefined, given.query);
    const headers = this.headers();
    const route = this.#route ?? quoted(given.route ?? runIn(name, given.path as Record<string, string> | undefined));
    if (route) headers["X-Amends-Route"] = route;
    let body: string | Uint8Array | undefined;
    if (given.body !== undefined) {
      const isBytes = (given.body as unknown) instanceof Uint8Array;
      headers["Content-Type"] = isBytes ? "application/zip" : "application/json";
      body = isBytes ? (given.body as unknown as Uint8Array) : encode(given.body);
    }
    const mayRepeat = method !== "POST" || REPEATABLE.has(name);
    const until = monotonic() + (given.patience ?? this.patience);
    for (let tries = 0; ; tries += 1) {
      try {
        return await this.#once<Operations[N]["answer"]>(url, { method, headers, body }, given);
      } catch (error) {
        if (given.signal?.aborted || !(error instanceof AmendsError)) throw error;
        const pause = Math.max(error.retry_after ?? 0, backoff(tries));
        if (!isPassing(error, mayRepeat) || monotonic() + pause > until) throw error;
        await sleep(pause, given.signal);
      }
    }
  }

  /** Return the headers that say who asks. */
  headers(): Record<string, string> {
    return { Authorization: `Bearer ${this.#token}`, Accept: "application/json" };
  }

  /** Open a stream of server-sent events; the caller reads and ends it. */
  async stream(query: Record<string, unknown>, after: string, signal: AbortSignal | undefined): Promise<Response> {
    const headers: Record<string, string> = { ...this.headers(), Accept: "text/event-stream" };
    if (after) headers["Last-Event-ID"] = after;
    const url = this.#address("events", {}, query);
    let answer: Response;
    try {
      answer = await this.#fetch(url, { headers, signal: signal ?? null, redirect: "error" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Unreachable(`${this.url} does not answer: ${wordsOf(error)}`, { cause: error });
    }
    if (!answer.ok) throw errorOf(await problemIn(answer));
    return answer;
  }

  async #once<T>(
    url: string,
    sent: { method: string; headers: Record<string, string>; body: string | Uint8Array | undefined },
    given: Asking,
  ): Promise<Answered<T>> {
    const limit = new AbortController();
    const timeout = given.timeout ?? this.timeout;
    const stop = () => limit.abort(given.signal?.reason);
    given.signal?.throwIfAborted();
    given.signal?.addEventListener("abort", stop, { once: true });
    const timer = setTimeout(() => limit.abort(new Error(`no answer within ${timeout} s`)), timeout * 1000);
    try {
      const answer = await this.#fetch(url, {
        method: sent.method,
        headers: sent.headers,
        ...(sent.body === undefined ? {} : { body: sent.body as RequestInit["body"] }),
        signal: limit.signal,
        redirect: "error",
      });
      if (!answer.ok) throw errorOf(await problemIn(answer));
      return { status: answer.status, headers: answer.headers, data: (await dataIn(answer)) as T };
    } catch (error) {
      if (error instanceof AmendsError) throw error;
      if (given.signal?.aborted) throw given.signal.reason;
      throw new Unreachable(`${this.url} does not answer: ${wordsOf(error)}`, { cause: error });
    } finally {
      clearTimeout(timer);
      given.signal?.removeEventListener("abort", stop);
    }
  }

  #address(name: keyof Operations, path: Record<string, string> | undefined, query: object | undefined): string {
    const place = ROUTES[name].path.replace(/\{(\w+)\}/g, (_, part: string) => segment(part, path?.[part]));
    const said = new URLSearchParams();
    for (const [key, value] of Object.entries({ tenant: this.#tenant, ...query })) {
      if (value !== undefined && value !== null) said.set(key, String(value));
    }
    return `${this.url}${place}${said.size ? `?${said.toString()}` : ""}`;
  }
}

/** Return the error of a problem document, of the class that its `code` names. */
export function errorOf(problem: Problem, options?: ErrorOptions): AmendsError {
  const kind = Object.hasOwn(ERRORS, problem.code) ? ERRORS[problem.code] : undefined;
  return new (kind ?? AmendsError)(problem, options);
}

function isPassing(error: AmendsError, mayRepeat: boolean): boolean {
  if (error instanceof TooMany) return true;
  if (error instanceof Unreachable) return mayRepeat || wasNeverSent(error.cause);
  if (error instanceof Busy || error instanceof LedgerUnavailable) return mayRepeat;
  return mayRepeat && [502, 503, 504].includes(error.status) && error.code === "";
}

/** Return whether this error of the network says that nothing was sent. */
export function wasNeverSent(error: unknown): boolean {
  for (let one = error, depth = 0; one instanceof Error && depth < 8; one = one.cause, depth += 1) {
    const code = (one as NodeJS.ErrnoException).code;
    if (one instanceof AggregateError && one.errors.length) return one.errors.every(wasNeverSent);
    if (code !== undefined) return NEVER_SENT.has(code);
  }
  return false;
}

async function problemIn(answer: Response): Promise<Problem> {
  const text = await answer.text();
  try {
    const said = JSON.parse(text) as Problem;
    if (typeof said.code === "string" && typeof said.detail === "string") return said;
  } catch {
    // Not a problem document: something between here and the service has answered.
  }
  const after = Number(answer.headers.get("retry-after") ?? Number.NaN);
  return {
    type: "about:blank", title: answer.statusText, status: answer.status, code: "",
    detail: `status ${answer.status}: ${text.slice(0, 200) || answer.statusText}`,
    hint: "this answer is not the service's own: look at what is between here and the service, and at the address",
    ...(Number.isFinite(after) ? { retry_after: after } : {}),
  };
}

async function dataIn(answer: Response): Promise<unknown> {
  const kind = answer.headers.get("content-type") ?? "";
  if (kind.startsWith("application/json")) return answer.json();
  return kind.startsWith("text/") ? answer.text() : new Uint8Array(await answer.arrayBuffer());
}

function wordsOf(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message || (cause as NodeJS.ErrnoException).code || cause.name : String(cause);
}

/** Return the run that the path of a route names; empty: none. */
function runIn(name: keyof Operations, path: Record<string, string> | undefined): string {
  return ROUTES[name].path.startsWith("/v1/runs/{id}") ? (path?.["id"] ?? "") : "";
}

/** Quote a text as the other clients do, so that it goes the same way. */
function quoted(text: string): string {
  return encodeURIComponent(String(text).replace(/[\ud800-\udfff]/gu, "?")).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
}

function segment(name: string, value: string | undefined): string {
  // A browser's address has no parts "." and "..", however they are quoted.
  if (typeof value !== "string" || !value || value === "." || value === "..") {
    throw new UsageError(`${JSON.stringify(value) ?? "undefined"} cannot be the ${name} in an address`, {
      hint: "give an id that is a text, not empty, not . and not ..",
    });
  }
  return encodeURIComponent(value);
}

function checkedUrl(url: unknown): string {
  const found = typeof url === "string" && URL.canParse(url) ? new URL(url) : undefined;
  if (!found || !["http:", "https:"].includes(found.protocol) || found.search || found.hash || found.username) {
    throw new UsageError("the url of the service is an address like http://127.0.0.1:8642");
  }
  return found.href.replace(/\/+$/, "");
}

export function checkedSeconds(name: string, value: number): number {
  if (typeof value !== "number" || !(value >= 0)) throw new UsageError(`${name} is a number of seconds, not ${value}`);
  return value;
}

function backoff(tries: number): number {
  return Math.min(BACKOFF_S * 2 ** Math.min(tries, 10), BACKOFF_S_MAX) * (0.5 + Math.random() / 2);
}

/** Return the seconds of a clock that nobody sets. */
export function monotonic(): number {
  return performance.now() / 1000;
}

/** Wait; throw the signal's reason if it is aborted meanwhile. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.min(seconds * 1000, 2 ** 31 - 1));
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
