"use strict";

// Running requests.

// Each open one costs a request a second.
const MAX_OPEN = 4;
const rows = new Map();

class Row {
  constructor(card) {
    this.node = make("li", { className: "request" });
    this.details = make("details", { open: [...rows.values()].filter((each) => each.details.open).length < MAX_OPEN });
    this.phase = make("span", { className: "phase" });
    this.line = make("span", { className: "facts-line number muted" });
    this.known = {};
    this.facts = make("dl", { className: "facts" });
    this.tree = make("ul", { className: "tree", "aria-label": "Tasks" });
    this.cancel = make("button", { type: "button", className: "danger", "aria-label": `Cancel ${card.id}` }, "Cancel");
    this.cancel.addEventListener("click", () => this.end());
    this.details.append(make("summary", {}, this.phase, ` ${card.method} ${card.path}`, this.line), this.facts, this.tree);
    this.node.append(this.details, this.cancel);
    this.card = card;
    byId("requests").append(this.node);
  }

  show(card) {
    this.card = card;
    setText(this.phase, card.phase);
    this.phase.dataset.phase = card.phase;
    const tokens = card.prompt_tokens ? `${card.prompt_tokens} + ${card.completion_tokens} tokens` : "";
    setText(this.line, [formatSeconds(card.age_seconds), !byId("models").hidden && card.model, tokens, card.key, ownIds.has(card.id) && "from this page"].filter(Boolean).join(", "));
    this.showFacts();
  }

  showFacts() {
    const card = this.card, limit = card.timeout_seconds;
    const { worker, kv_blocks: blocks } = this.known;
    const facts = [
      ["Where", worker ?? "…"],
      ["Deadline", limit === null ? "none" : `in ${formatSeconds(Math.max(0, limit - card.age_seconds))}`],
      ["Tokens", `${card.prompt_tokens} in, ${card.completion_tokens} out`],
      ["KV blocks", blocks === undefined ? "…" : blocks === null ? "not known" : String(blocks)],
      ["Request", card.id],
    ];
    if (!this.facts.childElementCount) {
      this.facts.append(...facts.map(([name]) => make("div", {}, make("dt", {}, name), make("dd", { className: name === "Request" ? "id" : "" }))));
    }
    facts.forEach(([, value], i) => setText(this.facts.children[i].lastElementChild, value));
  }

  showDetails(details) {
    this.known = details;
    this.showFacts();
    const text = JSON.stringify(details.task);
    if (this.shownTask === text) return;
    this.shownTask = text;
    // The reader may have opened the stack of a task, or stand on it.
    const isOpen = new Set([...this.tree.querySelectorAll("details")].flatMap((each, i) => each.open ? [i] : []));
    const focused = [...this.tree.querySelectorAll("summary")].indexOf(document.activeElement);
    this.tree.replaceChildren(...(details.task ? [makeTask(details.task)] : []));
    this.tree.querySelectorAll("details").forEach((each, i) => { each.open = isOpen.has(i); });
    if (focused >= 0) this.tree.querySelectorAll("summary")[focused]?.focus();
  }

  async end() {
    this.cancel.disabled = true;
    try {
      await ask(`v1/requests/${encodeURIComponent(this.card.id)}`, { method: "DELETE" });
      speak(`Request ${this.card.id} is cancelled.`);
    } catch (error) {
      speak(error instanceof Refused ? error.message : "The server does not answer.");
    }
    this.cancel.disabled = false;
    byId("requests-title").focus();
    poll();
  }

  remove() {
    if (this.node.contains(document.activeElement)) byId("requests-title").focus();
    this.node.remove();
  }
}

const shorten = (name) => name.split(".").slice(-2).join(".");

function makeTask(task) {
  const frames = [...task.awaits].reverse();
  const item = make("li", {}, make("span", { className: "task" }, shorten(task.name)));
  // The innermost function of this server says more than those of its libraries.
  const own = frames.find((each) => each.startsWith("trioserve.")) ?? frames[0];
  if (own) item.append(make("span", { className: "await" }, `waits in ${shorten(own)}`));
  if (frames.length > 1) {
    const list = make("ol", {}, ...frames.map((each) => make("li", { className: "await" }, ...breakAtDots(each))));
    item.append(make("details", {}, make("summary", {}, `${frames.length} functions, the innermost first`), list));
  }
  // The server has them in no order.
  const below = [...task.tasks].sort((a, b) => a.name.localeCompare(b.name)).map(makeTask);
  if (task.num_tasks_left_out) below.push(make("li", { className: "muted" }, `and ${task.num_tasks_left_out} more`));
  if (below.length) item.append(make("ul", {}, ...below));
  return item;
}

// Others may look, too: other tabs, and trioserve top.
function isLook({ method, path }) { return method === "GET" && /^\/v1\/requests(\/|$)/.test(path); }

function showRequests(cards) {
  const seen = new Set();
  for (const card of cards.filter((each) => !isLook(each))) {
    // Several requests may have the same id.
    const name = JSON.stringify([card.id, card.method, card.path]);
    if (seen.has(name)) continue;
    seen.add(name);
    if (!rows.has(name)) rows.set(name, new Row(card));
    rows.get(name).show(card);
  }
  for (const [name, row] of rows) {
    if (!seen.has(name)) { row.remove(); rows.delete(name); }
  }
  byId("no-requests").hidden = rows.size > 0;
  setText(byId("requests-title"), rows.size ? `Requests (${rows.size})` : "Requests");
}

async function showOpenRows() {
  for (const row of [...rows.values()].filter((each) => each.details.open)) {
    try {
      const found = await (await get(`v1/requests/${encodeURIComponent(row.card.id)}`)).json();
      row.showDetails(found.data.find((each) => each.path === row.card.path) ?? found.data[0]);
    } catch (error) {
      // It has ended in the meantime.
      if (!(error instanceof Refused && error.status === 404)) throw error;
    }
  }
}
