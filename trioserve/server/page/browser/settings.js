"use strict";

// Settings of an answer. They are kept in this browser, for all conversations.

// The limit of one answer, unless the user sets another one. "Continue" goes on.
const MAX_TOKENS = 1024;

function findLimit() { return Math.min(MAX_TOKENS, Math.ceil(server.model.max_model_len / 2) || MAX_TOKENS); }

// `id` is the field, where it is known.
class WrongSetting extends Error {
  constructor(message, id = "") { super(message); this.id = id; }
}

// Readers of a text that is not empty. They return what it adds to a request.
function readNumber(name, { min = -Infinity, max = Infinity, isWhole = false, isAbove = false } = {}) {
  return (text) => {
    const digits = text.trim(), value = Number(digits.replace(",", "."));
    // "1,000" means a thousand to some, and one to others.
    if (isWhole && !/^[-+]?\d+$/.test(digits)) throw new WrongSetting("This is not a whole number, in digits alone.");
    if (isWhole && !Number.isSafeInteger(value)) throw new WrongSetting("This number is too large for the page.");
    if (!/^[-+\d.,e]+$/i.test(digits) || !Number.isFinite(value)) throw new WrongSetting("This is not a number.");
    const lowest = isAbove ? `above ${min}` : `at least ${min}`;
    if (value < min || value > max || (isAbove && value === min)) {
      throw new WrongSetting(`This must be ${max === Infinity ? lowest : `${lowest} and at most ${max}`}.`);
    }
    return { [name]: value };
  };
}

// One a line. \n, \t and \\ are written as in most programs.
function readStops(text) {
  const letters = { n: "\n", t: "\t", "\\": "\\" };
  return { stop: text.split("\n").filter(Boolean).map((line) => line.replace(/\\([nt\\])/g, (_, letter) => letters[letter])) };
}

function readSchema(text) {
  let schema;
  try { schema = JSON.parse(text); } catch (error) { throw new WrongSetting(`This is not JSON: ${error.message}`); }
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) throw new WrongSetting("A schema is a JSON object.");
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
}

// What stands in the form, by the ids of the fields. The id "stop" is a button's.
const SETTINGS = {
  system: { label: "System prompt", help: "What the model is told before each conversation.", rows: 2, read: () => ({}) },
  temperature: { label: "Temperature", help: "0 takes the likeliest token; more varies more.", read: readNumber("temperature", { min: 0, max: 100 }) },
  top_p: { label: "Top p", help: "Keeps the likeliest tokens that have this probability together.", read: readNumber("top_p", { min: 0, max: 1, isAbove: true }) },
  top_k: { label: "Top k", help: "Keeps so many of the likeliest tokens; 0 keeps all.", read: readNumber("top_k", { min: -1, max: 2 ** 31 - 1, isWhole: true }) },
  min_p: { label: "Min p", help: "Keeps tokens with this part of the highest probability.", read: readNumber("min_p", { min: 0, max: 1 }) },
  repetition_penalty: { label: "Repetition penalty", help: "Above 1: less of what the question or the answer has.", read: readNumber("repetition_penalty", { min: 0.01, max: 100 }) },
  presence_penalty: { label: "Presence penalty", help: "Above 0: less of what the answer has.", read: readNumber("presence_penalty", { min: -2, max: 2 }) },
  frequency_penalty: { label: "Frequency penalty", help: "Above 0: less of it with each time that it comes.", read: readNumber("frequency_penalty", { min: -2, max: 2 }) },
  max_tokens: { label: "Max tokens", help: "The limit of one answer.", read: readNumber("max_tokens", { min: 1, max: 2 ** 31 - 1, isWhole: true }) },
  seed: { label: "Seed", help: "The same seed gives the same answer again.", none: "random", read: readNumber("seed", { isWhole: true }) },
  stop_texts: { label: "Stop", help: "Texts that end the answer, one a line; \\n is a line break.", rows: 2, none: "none", read: readStops },
  schema: { label: "JSON schema", help: "The answer becomes JSON of this form.", rows: 3, none: "none", read: readSchema },
};

const SETTINGS_KEY = "trioserve-settings";

function makeSetting(id, { label, help, rows, none = "model’s own" }) {
  const options = { id, autocomplete: "off", spellcheck: false, "aria-describedby": `${id}-help ${id}-wrong` };
  const field = rows ? make("textarea", { ...options, rows, placeholder: id === "system" ? "" : none })
    : make("input", { ...options, inputMode: "decimal", placeholder: none });
  return make("div", { className: rows ? "whole" : "" }, make("label", { htmlFor: id }, label), field,
    make("p", { id: `${id}-help`, className: "help" }, help), make("p", { id: `${id}-wrong`, className: "wrong", role: "alert" }));
}

function noteWrong(id, text) {
  setText(byId(`${id}-wrong`), text);
  if (text) byId(id).setAttribute("aria-invalid", "true"); else byId(id).removeAttribute("aria-invalid");
}

// Returns what a field adds to a request, and notes what is wrong in it.
function readSetting(id) {
  const text = byId(id).value;
  noteWrong(id, "");
  if (!text.trim()) return {};
  try {
    return SETTINGS[id].read(text);
  } catch (error) {
    if (!(error instanceof WrongSetting)) throw error;
    noteWrong(id, error.message);
    return {};
  }
}

// Returns the fields of a request. No setting is left out of it because it is wrong.
function readSettings() {
  const ids = Object.keys(SETTINGS), settings = Object.assign({}, ...ids.map(readSetting));
  const wrong = ids.find((id) => byId(`${id}-wrong`).textContent);
  if (wrong) throw new WrongSetting(`The setting “${SETTINGS[wrong].label}” is wrong.`, wrong);
  return { max_tokens: findLimit(), ...settings };
}

// Leads to the first setting that is wrong. Returns the words for it, if there is one.
function explainSettings() {
  try {
    readSettings();
    return "";
  } catch (error) {
    if (!(error instanceof WrongSetting)) throw error;
    showSetting(error.id);
    return error.message;
  }
}

function showSetting(id) {
  byId("settings").open = true;
  byId(id).focus();
}

// Shows what the server says of a field where the field is, if the page has set it.
function noteRefusedSetting({ param, message }) {
  const name = String(param ?? "").split(/[.[]/)[0];
  const id = { response_format: "schema", stop: "stop_texts" }[name] ?? name;
  if (!(id in SETTINGS) || !byId(id).value.trim()) return;
  showSetting(id);
  noteWrong(id, message);
}

// ---- Keeping them ---------------------------------------------------------------------

function keepSettings() {
  const set = Object.keys(SETTINGS).filter((id) => byId(id).value.trim());
  setText(byId("settings-title"), set.length ? `Settings (${set.length} set)` : "Settings");
  byId("reset").hidden = set.every((id) => id === "system");
  const values = Object.fromEntries(set.map((id) => [id, byId(id).value]));
  // A browser may keep nothing.
  try {
    if (set.length) localStorage.setItem(SETTINGS_KEY, JSON.stringify(values));
    else localStorage.removeItem(SETTINGS_KEY);
  } catch { /* They last as long as the tab. */ }
}

function loadSettings() {
  let values = {};
  try { values = JSON.parse(localStorage.getItem(SETTINGS_KEY)) ?? {}; } catch { /* There are none. */ }
  for (const [id, text] of Object.entries(values)) if (id in SETTINGS) byId(id).value = String(text);
  keepSettings();
}

byId("fields").append(...Object.entries(SETTINGS).map(([id, setting]) => makeSetting(id, setting)));
byId("fields").addEventListener("input", (event) => { noteWrong(event.target.id, ""); keepSettings(); });
byId("fields").addEventListener("change", (event) => readSetting(event.target.id));
byId("reset").addEventListener("click", () => {
  for (const id of Object.keys(SETTINGS)) {
    if (id === "system") continue;
    byId(id).value = "";
    noteWrong(id, "");
  }
  keepSettings();
  byId("temperature").focus();
  speak("The settings are the model’s own again.");
});
loadSettings();
