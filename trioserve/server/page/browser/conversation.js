"use strict";

// Conversations and their messages, without nodes.

// crypto.randomUUID is there at addresses with TLS alone.
function makeId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16).padStart(2, "0")).join("");
}

const MAX_TITLE = 60;

function makeTitle({ text, images }) {
  const line = text.trim().split("\n", 1)[0].trim() || (images?.length ? "Image" : "Conversation");
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1).trimEnd()}…` : line;
}

// A conversation is a tree. Each message names its parent, the first ones name "". Of the
// children of a parent one is chosen, and the chosen messages are the path that is shown.
// A message has these fields:
//   id, conversation, parent, role, text, created (milliseconds)
//   images: of a question, a list of {name, url}
//   failure: of a question without an answer, the reason in words
//   model, reasoning, reason (why it ended), note (the same in words), isWrong: of an answer
class Conversation {
  constructor({ id = makeId(), title = "", created = Date.now(), changed = created, chosen = {} } = {}, messages = [], waiting = []) {
    Object.assign(this, { id, title, created, changed, chosen: { ...chosen } });
    this.messages = new Map(messages.map((each) => [each.id, each]));
    this.views = new Map();
    // The answer that is being written, and the questions that wait for its end. Without one,
    // they wait for the user. They have these fields:
    //   id, text, images, created
    //   isKept: the browser keeps it, so other tabs have it, too
    Object.assign(this, { run: null, queue: waiting, isHeld: waiting.length > 0, isTaking: false });
    Object.assign(this, { isKept: messages.length > 0, numWritten: 0 });
    // The title, or images, of which the browser keeps older ones or none.
    Object.assign(this, { hasNewTitle: false, lacksImages: false });
  }

  add(fields) {
    const message = { id: makeId(), conversation: this.id, text: "", created: Date.now(), ...fields };
    this.messages.set(message.id, message);
    this.chosen[message.parent] = message.id;
    this.title ||= makeTitle(message);
    return message;
  }

  // A title that was made of a first question goes and changes with it.
  isTitle(message) { return !message.parent && makeTitle(message) === this.title; }

  renewTitle() {
    const [first] = this.listPath();
    this.title = first ? makeTitle(first.message) : "";
    this.hasNewTitle = true;
  }

  group() {
    const sorted = [...this.messages.values()].sort((a, b) => a.created - b.created);
    return Map.groupBy(sorted, (each) => each.parent);
  }

  listChildren(id) { return this.group().get(id) ?? []; }

  // Returns each message that is shown, with all branches at its place.
  listPath() {
    const groups = this.group(), path = [];
    for (let id = ""; groups.has(id); id = path.at(-1).message.id) {
      const siblings = groups.get(id);
      path.push({ message: siblings.find((each) => each.id === this.chosen[id]) ?? siblings.at(-1), siblings });
    }
    return path;
  }

  // Removes a message and all that follows it. What follows a question without an answer
  // stays, because it was asked without it. Returns what undoes this.
  remove(message) {
    const groups = this.group(), { title } = this, chosen = { ...this.chosen };
    const children = groups.get(message.id) ?? [];
    const moved = message.role === "user" && !children.some((each) => each.role === "assistant") ? children : [];
    const removed = [message];
    if (!moved.length) {
      for (const each of removed) removed.push(...groups.get(each.id) ?? []);
    }
    for (const each of removed) { this.messages.delete(each.id); delete this.chosen[each.id]; }
    if (this.chosen[message.parent] === message.id) {
      delete this.chosen[message.parent];
      if (moved.length) this.chosen[message.parent] = chosen[message.id] ?? moved.at(-1).id;
    }
    for (const each of moved) each.parent = message.parent;
    if (removed.some((each) => this.isTitle(each))) this.renewTitle();
    const undo = () => {
      for (const each of removed) this.messages.set(each.id, each);
      for (const each of moved) each.parent = message.id;
      Object.assign(this.chosen, chosen);
      if (this.title !== title) Object.assign(this, { title, hasNewTitle: true });
    };
    return { removed, moved, undo };
  }
}

// The messages of a request, from a path to its last message. Many templates want roles to
// alternate, so a question without an answer is left out, and so is an empty answer with it.
function listMessages(path) {
  const messages = [];
  const system = byId("system").value.trim();
  if (system) messages.push({ role: "system", content: system });
  path.forEach(({ role, text, images = [] }, i) => {
    const next = path[i + 1], isLast = !next;
    if (!isLast && role === "user" && !(next.role === "assistant" && next.text)) return;
    if (role === "assistant" && !text) return;
    const pictures = images.map((each) => ({ type: "image_url", image_url: { url: each.url } }));
    messages.push({ role, content: pictures.length ? [...pictures, { type: "text", text }] : text });
  });
  return messages;
}
