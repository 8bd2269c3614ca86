// Loaded into a real MCP server before anything else: each request that it makes over HTTP goes to the address in
// STAND_IN_API, with the host that was meant in a header. Nothing of it leaves this machine.
"use strict";
const http = require("node:http");
const https = require("node:https");
const { syncBuiltinESMExports } = require("node:module");

const api = new URL(process.env.STAND_IN_API);
const MEANT = "x-meant-host";
const ask = http.request;

function request(first, second, third) {
  const isAddress = typeof first === "string" || first instanceof URL;
  const url = isAddress ? new URL(first) : null;
  const options = { ...(isAddress ? (typeof second === "function" ? {} : second) : first) };
  const answer = typeof second === "function" ? second : third;
  const meant = url ? url.hostname : (options.hostname ?? options.host);
  const made = ask(
    {
      method: options.method,
      path: options.path ?? (url ? url.pathname + url.search : "/"),
      headers: { ...options.headers, [MEANT]: meant },
      timeout: options.timeout,
      hostname: api.hostname,
      port: api.port,
    },
    answer,
  );
  // Some wait for the end of a handshake that there is none of here.
  made.once("socket", (socket) => socket.once("connect", () => socket.emit("secureConnect")));
  return made;
}

for (const kind of [http, https]) {
  kind.request = request;
  kind.get = (...words) => {
    const made = request(...words);
    made.end();
    return made;
  };
}
syncBuiltinESMExports();

const fetched = globalThis.fetch;
globalThis.fetch = async (input, init) => {
  const meant = new Request(input, init);
  const url = new URL(meant.url);
  const headers = new Headers(meant.headers);
  headers.set(MEANT, url.hostname);
  const body = ["GET", "HEAD"].includes(meant.method) ? undefined : await meant.arrayBuffer();
  return fetched(new URL(url.pathname + url.search, api), { method: meant.method, headers, body, signal: meant.signal });
};
