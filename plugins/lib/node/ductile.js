// ductile.js: read a request and answer it from Node. Copy it beside your entrypoint (CommonJS; no dependencies).
//
//   const { run, Final } = require("./ductile.js");
//   run({
//     async poll(job) {
//       job.emit("thing.changed", { url: job.config.url });
//       job.state.seen = job.config.url; // what has changed in `state` at the end is kept
//       return `looked at ${job.config.url}`; // or throw an Error, a Final, a Misconfigured
//     },
//   });
//
// Whole numbers beyond 2^53 lose digits in JavaScript: pass ids on as text.
"use strict";

const fs = require("node:fs");

const PROTOCOL = 2;
const EX_CONFIG = 78;

/** No other attempt would succeed. */
class Final extends Error {}

/** The operator has to change the configuration first. */
class Misconfigured extends Final {}

class Job {
  constructor(request) {
    this.id = request.job_id;
    this.command = request.command;
    this.config = request.config ?? {};
    this.state = request.state ?? {};
    this.context = request.context ?? {};
    this.event = request.event;
    // For `handle` the payload of the request is the whole event; what it carries is meant.
    this.payload = (request.event ?? request).payload ?? {};
    this.events = [];
    this.logs = [];
  }

  /** The answer has this event. */
  emit(type, payload, dedupeKey) {
    this.events.push({ type, payload, dedupe_key: dedupeKey });
  }

  /** The answer has this line; `level` is debug, info, warn or error. */
  log(level, message) {
    this.logs.push({ level, message });
  }
}

/** Read the request, run its command, print the answer, end the process. */
async function run(commands) {
  // stdout is for the answer alone.
  for (const name of ["log", "info", "debug"]) console[name] = console.error;
  const request = readRequest();
  if (request?.protocol !== PROTOCOL) {
    console.error(`this plugin speaks protocol ${PROTOCOL} only`);
    process.exit(EX_CONFIG);
  }
  const job = new Job(request);
  const before = JSON.stringify(job.state);
  const answer = { events: job.events, logs: job.logs };
  let code = 0;
  try {
    if (!Object.hasOwn(commands, job.command)) throw new Final(`there is no command ${JSON.stringify(job.command)}`);
    Object.assign(answer, { status: "ok", result: await commands[job.command](job) });
    if (JSON.stringify(job.state) !== before) answer.state_updates = job.state;
  } catch (error) {
    if (!(error instanceof Final)) console.error(error);
    if (error instanceof Misconfigured) code = EX_CONFIG;
    Object.assign(answer, { status: "error", error: error.message, retry: !(error instanceof Final) });
  }
  // Written to the end before the process ends, however much it is and whatever is still open.
  const output = Buffer.from(JSON.stringify(answer) + "\n");
  for (let at = 0; at < output.length; ) at += fs.writeSync(1, output, at);
  process.exit(code);
}

function readRequest() {
  try {
    return JSON.parse(fs.readFileSync(0, "utf8"));
  } catch {
    return undefined;
  }
}

module.exports = { run, Job, Final, Misconfigured };
