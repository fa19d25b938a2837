// The plugin protocol of Ductile for Node (CommonJS, no dependencies). Copy it next to your entrypoint.
//
//   const { run, Final } = require("./ductile.js");
//   run({
//     async poll(job) {
//       job.emit("page.changed", { url: job.config.url });
//       job.state.lastUrl = job.config.url; // a changed state is stored
//       return `checked ${job.config.url}`; // or throw an Error, Final or Misconfigured
//     },
//   });
//
// JavaScript loses digits of integers above 2^53: use text for ids.
"use strict";

const fs = require("node:fs");

const PROTOCOL = 2;
const EX_CONFIG = 78;

/** The job failed, and a retry would fail too. */
class Final extends Error {}

/** The configuration is invalid. The operator must change it. */
class Misconfigured extends Final {}

class Job {
  constructor(request) {
    this.id = request.job_id;
    this.command = request.command;
    this.config = request.config ?? {};
    this.state = request.state ?? {};
    this.context = request.context ?? {};
    this.event = request.event;
    // For `handle`, the payload of the request is the whole event.
    this.payload = (request.event ?? request).payload ?? {};
    this.events = [];
    this.logs = [];
  }

  /** Add an event to the response. */
  emit(type, payload, dedupeKey) {
    this.events.push({ type, payload, dedupe_key: dedupeKey });
  }

  /** Add a log line to the response; `level` is debug, info, warn or error. */
  log(level, message) {
    this.logs.push({ level, message });
  }
}

/** Read the request, run its command, print the response and exit. */
async function run(commands) {
  // stdout is for the response only.
  for (const name of ["log", "info", "debug"]) console[name] = console.error;
  const request = readRequest();
  if (request?.protocol !== PROTOCOL) {
    console.error(`unsupported protocol; this plugin supports protocol ${PROTOCOL}`);
    process.exit(EX_CONFIG);
  }
  const job = new Job(request);
  const before = JSON.stringify(job.state);
  const response = { events: job.events, logs: job.logs };
  let code = 0;
  try {
    if (!Object.hasOwn(commands, job.command)) throw new Final(`unknown command ${JSON.stringify(job.command)}`);
    Object.assign(response, { status: "ok", result: await commands[job.command](job) });
    if (JSON.stringify(job.state) !== before) response.state_updates = job.state;
  } catch (error) {
    if (!(error instanceof Final)) console.error(error);
    if (error instanceof Misconfigured) code = EX_CONFIG;
    Object.assign(response, { status: "error", error: error.message, retry: !(error instanceof Final) });
  }
  // Write synchronously: process.exit discards pending asynchronous writes.
  const output = Buffer.from(JSON.stringify(response) + "\n");
  for (let offset = 0; offset < output.length; ) offset += fs.writeSync(1, output, offset);
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
