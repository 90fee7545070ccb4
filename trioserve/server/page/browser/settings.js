"use strict";

// Settings of an answer.

// The limit of one answer, unless the user sets another one. "Continue" goes on.
const MAX_TOKENS = 1024;

function findLimit() { return Math.min(MAX_TOKENS, Math.ceil(server.model.max_model_len / 2) || MAX_TOKENS); }

function readSettings() {
  const settings = { max_tokens: findLimit() };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (byId(name).value !== "") settings[name] = Number(byId(name).value);
  }
  return settings;
}

byId("composer").addEventListener("invalid", () => { byId("settings").open = true; }, true);
