/** JSON that says what was meant: a value that JSON.stringify would silently change is refused. */

import { UsageError } from "./errors.js";

/** Return the value as JSON text; throw `UsageError` if it would arrive as something else. */
export function encode(value: unknown): string {
  const problem = problemOf(value, "", new Set());
  if (problem) {
    throw new UsageError(problem, { hint: "send numbers, texts, true, false, null, arrays and plain objects" });
  }
  return JSON.stringify(value === undefined ? null : value);
}

function problemOf(value: unknown, place: string, above: Set<object>): string {
  const at = place || "the value";
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? "" : `${at} is ${value}, which JSON does not have`;
    case "bigint":
      return `${at} is a bigint: send it as a text`;
    case "function":
    case "symbol":
      return `${at} is a ${typeof value}, which cannot be sent`;
    case "object":
      return value === null ? "" : objectProblem(value, at, above);
    default:
      return "";
  }
}

function objectProblem(value: object, at: string, above: Set<object>): string {
  if (above.has(value)) return `${at} contains itself`;
  if ("toJSON" in value) return "";
  const shape = Object.getPrototypeOf(value) as unknown;
  if (value instanceof Map || value instanceof Set || value instanceof Promise || ArrayBuffer.isView(value)) {
    return `${at} is a ${value.constructor.name}, which cannot be sent`;
  }
  const isList = Array.isArray(value);
  if (!isList && shape !== null && shape !== Object.prototype && value instanceof Error) {
    return `${at} is an ${value.name}, which cannot be sent`;
  }
  above.add(value);
  for (const [name, one] of Object.entries(value)) {
    const place = isList ? `${at}[${name}]` : `${at}.${name}`;
    const problem = isList && one === undefined ? `${place} is undefined` : problemOf(one, place, above);
    if (problem) return problem;
  }
  above.delete(value);
  return "";
}
