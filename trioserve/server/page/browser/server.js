"use strict";

// Asking the server, and what it says of itself.

// The page is served at the root of the API, with or without a slash behind it. So all
// addresses begin with its own path, and a proxy may put it below any other.
const ROOT = location.pathname.replace(/\/?$/, "/");

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

const server = { model: null, isDown: false, needsKey: false };
// A proxy in front of several servers can send all that this tab asks to one of them, which then
// has the conversation in its prefix cache, and the requests that the live view shows.
const SESSION = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

async function ask(path, { body, headers, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  const all = { "X-Session-Id": SESSION, ...(key && { Authorization: `Bearer ${key}` }), ...headers };
  if (body) all["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(ROOT + path, {
      ...options, headers: all, cache: "no-store", body: body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name !== "AbortError") noteDown();
    throw error;
  }
  if (answer.status === 401) noteKeyNeeded(Boolean(key));
  if (!answer.ok) throw new Refused(answer.status, await readMessage(answer));
  return answer;
}

async function readMessage(answer) {
  const text = await answer.text().catch(() => "");
  try { return JSON.parse(text).error.message; } catch { /* Not of this server. */ }
  return `The server answered ${answer.status}.`;
}

function showBanner(text, offersKey = false) {
  const [words, button] = byId("banner").children;
  setText(words, text);
  button.hidden = !offersKey;
  byId("banner").hidden = !text;
}

let timer = 0;

function noteDown() {
  if (server.isDown) return;
  server.isDown = true;
  showBanner("The server does not answer. This page goes on when it is back.");
  timer = setTimeout(connect, 1500);
}

// Reads the model, again and again until there is one.
async function connect() {
  clearTimeout(timer);
  try {
    const answer = await ask("v1/models", { signal: AbortSignal.timeout(10000) });
    showModel((await answer.json()).data[0]);
    server.isDown = server.needsKey = false;
    showBanner("");
    poll();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return;
    server.isDown = true;
    showBanner(error instanceof Refused
      ? `The server is not ready: ${error.message}`
      : "The server does not answer. This page goes on when it is back.");
    timer = setTimeout(connect, 1500);
  }
}

function showModel(model) {
  server.model = model;
  setText(byId("model"), model.id);
  document.title = `${model.id} · trioserve`;
  const { input_modalities: reads, output_modalities: writes } = model.architecture;
  const chats = writes.includes("text");
  byId("attach").hidden = !reads.includes("image");
  byId("max_tokens").placeholder = findLimit();
  byId("to-chat").hidden = byId("chat").hidden = !chats;
  setText(byId("only-live"), `${model.id} writes no text but ${writes.join(" and ")}, so there is no chat here.`);
  byId("only-live").hidden = chats;
  if (chats) delete document.body.dataset.only; else document.body.dataset.only = "live";
  showView();
}
