/** Client of the amends service. Names of fields and verbs are those of the service: see its OpenAPI document. */

export { Client, type EventsOptions, type OpenOptions } from "./client.js";
export * from "./errors.js";
export { Connection, errorOf, type Answered, type Asking, type ConnectionOptions } from "./http.js";
export { AmendsError, NoEffect, Unreachable } from "./problem.js";
export { Attempt, Run, type CallOptions, type ChildOptions, type ClaimOptions } from "./run.js";
export {
  absent, happened, tool, unknown,
  type Compensate, type Execute, type Probe, type Probed, type Tool, type ToolOptions, type Work,
} from "./tool.js";
export type * from "./types.js";
export { serve, Worker, type ServeOptions } from "./worker.js";
