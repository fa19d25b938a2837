#!/usr/bin/env node
// The smallest complete plugin in Node. See README.md.
"use strict";

const { run, Misconfigured } = require("./ductile.js");

function setting(config, key, otherwise) {
  const value = config[key] ?? otherwise;
  if (typeof value !== "string" || !value.trim()) {
    throw new Misconfigured(`${key} must be text and not blank, not ${JSON.stringify(value)}`);
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
  health: (job) => `would say: ${greeting(job.config).message}`,
});
