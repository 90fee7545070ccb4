"use strict";

// The messages of a conversation.

// Each turn is {role, text, images, node}; a turn without a text was not answered.
const turns = [];
const ownIds = new Set();
let running = null;
const log = byId("log");

function addMessage(role, name) {
  byId("welcome").hidden = true;
  byId("new").hidden = false;
  const text = make("div", { className: "text" });
  const node = make("article", { className: `message ${role}` }, make("h3", { className: "who" }, name), text);
  byId("messages").append(node);
  return { node, text };
}

function keepAtEnd(change) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function listMessages() {
  const messages = [];
  const system = byId("system").value.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const { role, text, images = [] } of turns) {
    const pictures = images.map((each) => ({ type: "image_url", image_url: { url: each.url } }));
    const content = pictures.length ? [...pictures, { type: "text", text }] : text;
    const last = messages.at(-1);
    // Many templates want roles to alternate, so questions without an answer become one.
    if (last?.role === role && typeof last.content === "string" && typeof content === "string") last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}
