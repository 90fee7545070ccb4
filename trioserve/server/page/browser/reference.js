"use strict";

// What the document at /docs does beyond being read: filter, copy, and try an endpoint.

const endpoints = [...document.querySelectorAll(".endpoint")];
const objects = [...document.querySelectorAll(".object")];
byId("tools").hidden = false;

// The address of the server, which a proxy may put below any path.
const ROOT = location.pathname.replace(/docs$/, "");

// ---- Folding --------------------------------------------------------------------------

const isWide = matchMedia("(min-width: 60rem)");

function unfold() {
  for (const each of document.querySelectorAll(".unfolds")) each.open = isWide.matches;
}

// A link leads to fields, and not to a folded name.
function openTarget() {
  const details = document.querySelector(".object:target > .unfolds, .unfolds:target");
  if (details) details.open = true;
}

isWide.addEventListener("change", () => { unfold(); filter(); });
addEventListener("hashchange", openTarget);
unfold();
openTarget();

// ---- The filter -----------------------------------------------------------------------

// A part is found by its name with all of its fields, or by some of its fields.
function readPart(node, head) {
  const rows = [...node.querySelectorAll(".fields > div")];
  return { node, head: head.toLowerCase(), rows: rows.map((row) => [row, row.textContent.toLowerCase()]) };
}

const parts = [
  ...endpoints.map((node) => readPart(node, ["h3", "p", ".unfolds > summary"].map((each) => node.querySelector(each)?.textContent).join(" "))),
  ...objects.map((node) => readPart(node, node.querySelector("summary").textContent)),
];

function showPart({ node, head, rows }, words) {
  const isWhole = words.every((word) => head.includes(word));
  let numShown = 0;
  for (const [row, text] of rows) {
    const isShown = isWhole || words.every((word) => text.includes(word) || head.includes(word));
    row.hidden = !isShown;
    numShown += isShown;
  }
  node.hidden = !isWhole && !numShown;
  // The fields that were found are seen, also on a narrow screen.
  const isFound = words.length > 0 && !isWhole;
  for (const each of node.querySelectorAll("details")) {
    each.hidden = isFound && !each.querySelector(".fields > div:not([hidden])");
    each.open = isFound ? !each.hidden : each.matches(".unfolds") && isWide.matches;
  }
}

function filter() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const each of parts) showPart(each, words);
  for (const row of document.querySelectorAll("tr[data-of]")) row.hidden = byId(row.dataset.of).hidden;
  const isEmpty = (nodes) => nodes.every((each) => each.hidden);
  for (const each of document.querySelectorAll("#endpoints, #endpoints + table, #each-endpoint")) each.hidden = isEmpty(endpoints);
  byId("objects").hidden = isEmpty(objects);
  const count = (nodes, name) => {
    const number = nodes.filter((each) => !each.hidden).length;
    return `${number} ${name}${number === 1 ? "" : "s"}`;
  };
  const found = isEmpty([...endpoints, ...objects]) ? "Nothing has these words." : `${count(endpoints, "endpoint")}, ${count(objects, "object")}`;
  byId("found").textContent = words.length ? found : "";
}

byId("filter").addEventListener("input", filter);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea")) return;
  event.preventDefault();
  byId("filter").focus();
});

// ---- Asking the server ----------------------------------------------------------------

byId("key").value = tabStorage.getItem(KEY) ?? "";
byId("key-form").addEventListener("submit", (event) => event.preventDefault());
byId("key").addEventListener("input", () => {
  const key = byId("key").value.trim();
  if (key) tabStorage.setItem(KEY, key); else tabStorage.removeItem(KEY);
});

function ask(path, options) {
  const key = tabStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  return fetch(ROOT + path, { ...options, headers, cache: "no-store" });
}

let model = null;

// The examples say MODEL where an endpoint needs the name of one.
async function findModel() {
  if (model !== null) return model;
  const answer = await ask("v1/models", {}).catch(() => null);
  if (answer?.ok) model = (await answer.json()).data[0].id;
  return model;
}

// More would make the document slow, and nobody reads it here.
const MAX_SHOWN = 100_000;

class Trial {
  constructor(section) {
    const { method, path, example, parameters } = section.dataset;
    Object.assign(this, { method, path, running: null });
    this.body = null;
    this.inputs = JSON.parse(parameters).map(({ name, in: place, description }) =>
      [name, place, make("input", { placeholder: place === "path" ? "" : "optional", title: description, autocomplete: "off", spellcheck: false })]);
    this.send = make("button", { type: "submit", className: "main" }, "Send");
    this.status = make("p", { className: "status muted", role: "status" });
    this.answer = make("pre", { className: "answer", tabIndex: 0, "aria-label": "Answer", hidden: true });
    this.node = make("form", { className: "trial", "aria-label": `Try ${method} ${path}` });
    if (this.inputs.length) this.node.append(this.makeParameters());
    if (example) this.node.append(...this.makeBody(example, "streams" in section.dataset));
    this.node.append(this.send, this.status, this.answer);
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort(); else this.run();
    });
  }

  makeParameters() {
    return make("div", { className: "parameters" }, ...this.inputs.map(([name, , input]) => make("label", {}, name, input)));
  }

  makeBody(example, streams) {
    this.body = make("textarea", { rows: Math.min(16, example.split("\n").length + 1), spellcheck: false, value: example });
    const nodes = [make("label", {}, "Body", this.body)];
    if (streams) {
      this.streams = make("input", { type: "checkbox" });
      this.streams.addEventListener("change", () => this.writeStream());
      nodes.push(make("label", { className: "whole" }, this.streams, "As a stream"));
    }
    findModel().then((name) => { if (name) this.body.value = this.body.value.replace('"MODEL"', JSON.stringify(name)); });
    return nodes;
  }

  writeStream() {
    try {
      const { stream, ...body } = JSON.parse(this.body.value);
      this.body.value = JSON.stringify(this.streams.checked ? { ...body, stream: true } : body, null, 2);
    } catch (error) {
      this.say(`The body is not JSON: ${error.message}`, true);
    }
  }

  say(text, isWrong = false) {
    this.status.textContent = text;
    this.status.classList.toggle("wrong", isWrong);
  }

  // Returns the address, or tells which part of it is missing.
  findAddress() {
    let path = this.path.slice(1);
    const query = new URLSearchParams();
    for (const [name, place, input] of this.inputs) {
      const value = input.value.trim();
      if (place === "path" && !value) { this.say(`The path needs ${name}.`, true); input.focus(); return null; }
      if (place === "path") path = path.replace(`{${name}}`, value.split("/").map(encodeURIComponent).join("/"));
      else if (value) query.set(name, value);
    }
    return query.size ? `${path}?${query}` : path;
  }

  async run() {
    const address = this.findAddress();
    if (address === null) return;
    this.running = new AbortController();
    this.send.textContent = "Stop";
    this.answer.hidden = true;
    this.say("Waiting for the answer");
    const began = performance.now();
    try {
      await this.ask(address, () => `${((performance.now() - began) / 1000).toFixed(2)} s`);
    } catch (error) {
      this.say(error.name === "AbortError" ? "Stopped." : `The server did not answer: ${error.message}`, true);
    }
    this.running = null;
    this.send.textContent = "Send";
  }

  async ask(address, measure) {
    const response = await ask(address, {
      method: this.method, signal: this.running.signal,
      ...(this.body && { body: this.body.value, headers: { "Content-Type": "application/json" } }),
    });
    const type = response.headers.get("content-type")?.split(";")[0] ?? "no content";
    const head = `${response.status} ${response.statusText}`.trim();
    const tell = (more) => this.say(`${head}, ${type}, ${more}`, !response.ok);
    tell("not yet complete");
    await this.show(response, type);
    tell(measure());
    if (response.status === 401) {
      this.say(`${head}: put the key of this server into the field at the top.`, true);
      byId("key").focus();
    }
  }

  async show(response, type) {
    this.answer.replaceChildren();
    if (type === "application/octet-stream") {
      const bytes = await response.arrayBuffer();
      this.write(`${bytes.byteLength.toLocaleString("en")} bytes`);
      return;
    }
    if (type === "application/json") {
      const text = await response.text();
      this.write(formatJson(text));
      return;
    }
    // Text and events are shown as they come.
    let numRead = 0;
    for await (const text of readText(response)) {
      this.write(text.slice(0, Math.max(0, MAX_SHOWN - numRead)));
      numRead += text.length;
    }
    if (numRead > MAX_SHOWN) this.write(`\n… and ${(numRead - MAX_SHOWN).toLocaleString("en")} more characters`);
  }

  write(text) {
    if (text) this.answer.append(text);
    this.answer.hidden = !this.answer.firstChild;
  }
}

async function* readText(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; !(part = await reader.read()).done;) yield part.value;
}

function formatJson(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// ---- Buttons --------------------------------------------------------------------------

function makeTry(section, row) {
  const button = make("button", { type: "button", className: "try", ariaExpanded: "false" }, "Try it");
  let trial = null;
  button.addEventListener("click", () => {
    const opens = !trial?.node.isConnected;
    button.ariaExpanded = String(opens);
    if (!opens) { trial.running?.abort(); trial.node.remove(); return; }
    trial ??= new Trial(section);
    row.after(trial.node);
    trial.node.querySelector("input, textarea, button").focus();
  });
  return button;
}

// The examples begin with the path of the proxy that the server knows of, if it does.
const BASE = location.origin + ROOT.slice(0, -1);
const { rootPath } = document.querySelector("main").dataset;
const URL_SHOWN = BASE.endsWith(rootPath) ? BASE.slice(0, BASE.length - rootPath.length) : BASE;

for (const section of endpoints) {
  const example = section.querySelector(".curl");
  example.textContent = example.textContent.replace("$URL", () => URL_SHOWN);
  const row = make("div", { className: "tools" }, makeCopy(() => example.textContent));
  row.append(makeTry(section, row));
  example.after(row);
}
byId("about-url").remove();
