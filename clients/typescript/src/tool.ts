/** Tools that this process performs. */

import { BadDeclaration } from "./errors.js";
import { checkedSeconds } from "./http.js";
import type { CompensationDeclared, ToolDeclared } from "./types.js";

/** The piece of work that a body performs. */
export interface Work {
  /** The id of the run. */
  readonly run: string;
  /** The id of the call. */
  readonly call: string;
  readonly tool: string;
  /** The idempotency key for the destination: the same for every attempt. */
  readonly key: string;
  readonly attempt: number;
  /** Aborted when this process may have no effect any more: pass it on to `fetch`. */
  readonly signal: AbortSignal;
}

/** What a probe has found out. */
export type Probed =
  | { answer: "happened"; result?: unknown }
  | { answer: "absent" }
  | { answer: "unknown"; why?: string };

/** The effect is there, with the result that the body would have returned. */
export const happened = (result: unknown = null): Probed => ({ answer: "happened", result });
/** The effect is certainly not there. */
export const absent = (): Probed => ({ answer: "absent" });
/** It cannot be told now. */
export const unknown = (why = ""): Probed => ({ answer: "unknown", why });

type Maybe<T> = T | Promise<T>;
export type Execute<A, R> = (args: A, work: Work) => Maybe<R>;
export type Compensate<A, R> = (args: A, work: Work & { readonly result: R }) => Maybe<void>;
export type Probe<A> = (args: A, work: Work) => Maybe<Probed>;

/** A tool: what is declared to the service, and the functions that stay here. */
export interface ToolOptions<A, R> extends Omit<ToolDeclared, "compensate" | "probe"> {
  /** Have the effect. Throw `NoEffect` if certainly nothing happened. */
  execute: Execute<A, R>;
  /** Undo it; or `{ run, idempotent, ... }` to say what may be relied on. */
  compensate?: Compensate<A, R> | ({ run: Compensate<A, R> } & Partial<CompensationDeclared>);
  /** Tell whether a call took effect: `happened(result)`, `absent()` or `unknown(why)`. */
  probe?: Probe<A>;
}

export interface Tool<A = any, R = any> {
  readonly declared: ToolDeclared;
  readonly execute: Execute<A, R>;
  readonly compensate: Compensate<A, R> | undefined;
  readonly probe: Probe<A> | undefined;
}

/** Declare a tool that this process performs; `serve` makes it known to the service. */
export function tool<A = Record<string, unknown>, R = unknown>(options: ToolOptions<A, R>): Tool<A, R> {
  const { execute, compensate, probe, ...declared } = options;
  if (typeof declared.name !== "string" || !declared.name) throw new BadDeclaration("a tool needs a name");
  const undo = typeof compensate === "object" && compensate !== null ? compensate.run : compensate;
  for (const [name, body] of [["execute", execute], ["compensate", undo], ["probe", probe]] as const) {
    if (typeof body !== "function" && (name === "execute" || body !== undefined)) {
      throw new BadDeclaration(`${declared.name}: ${name} is a function`);
    }
  }
  if (declared.lease !== undefined) checkedSeconds("lease", declared.lease);
  const { run: _, ...relied } = typeof compensate === "object" ? compensate : { run: undefined };
  return {
    declared: {
      ...declared,
      ...(undo ? { compensate: relied as CompensationDeclared } : {}),
      probe: probe !== undefined,
    },
    execute,
    compensate: undo,
    probe,
  };
}
