/** The base of all errors, and what can be said about a value before it is sent. */

import type { Problem } from "./types.js";

/**
 * Base of all errors of amends. The class says which error it is (as does `code`, the `code` of the problem document),
 * the message says what happened, `hint` what to do, `problem` has every fact.
 */
export class AmendsError extends Error {
  /** The document that the service answered with; made up for an error of the client itself. */
  readonly problem: Problem;
  readonly code: string;
  /** The HTTP status; 0 for an error that no server has answered with. */
  readonly status: number;
  /** What to do. */
  readonly hint: string;
  /** After how many seconds trying again may help; undefined: it does not help. */
  readonly retry_after: number | undefined;

  constructor(problem: Problem | string, options?: ErrorOptions & { hint?: string }) {
    super(typeof problem === "string" ? problem : problem.detail, options);
    this.name = this.constructor.name;
    this.problem = typeof problem === "string" ? madeUp(this.name, problem, options?.hint ?? "") : problem;
    this.code = this.problem.code;
    this.status = this.problem.status;
    this.hint = this.problem.hint;
    this.retry_after = this.problem.retry_after ?? undefined;
  }
}

/** No server answered in time. What was asked for may or may not have happened: ask the same again. */
export class Unreachable extends AmendsError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, {
      hint: "check the address and that the service runs; then ask the same again, which repeats nothing",
      ...options,
    });
  }
}

/** A body throws it to say that certainly nothing happened. */
export class NoEffect extends AmendsError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, { hint: "nothing happened; it may be tried again", ...options });
  }
}

function madeUp(code: string, detail: string, hint: string): Problem {
  return { type: `urn:amends:error:${code}`, title: code, status: 0, detail, code, hint };
}
