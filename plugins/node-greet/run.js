#!/usr/bin/env node
// A minimal plugin in Node. See README.md.
"use strict";

const { run, Misconfigured } = require("./ductile.js");

function setting(config, key, fallback) {
  const value = config[key] ?? fallback;
  if (typeof value !== "string" || !value.trim()) {
    throw new Misconfigured(`${key} must be non-blank text, not ${JSON.stringify(value)}`);
  }
  return value;
}

function greeting(config) {
  const name = setting(config, "name", "World");
  return { name, message: `${setting(config, "greeting", "Hello")}, ${name}!` };
}

run({
  poll(job) {
    const { name, message } = greeting(job.config);
    job.emit("node-greet.greeted", { message, name });
    job.state = { last_greeting: message };
    return message;
  },
  health: (job) => `healthy (greeting: ${greeting(job.config).message})`,
});
