"use strict";

// Asking the server, and what it says of itself.

class Refused extends Error {
  // `param` is the field of the request that was refused, if the server names one.
  constructor(status, message, param = null) { super(message); Object.assign(this, { status, param }); }
}

// `downSince` is the time from which it did not answer, `heardAt` that of its last answer
// by a clock that nobody sets.
const server = { model: null, isDown: false, downSince: null, needsKey: false, heardAt: -Infinity };
// A proxy in front of several servers can send all that this tab asks to one of them, which then
// has the conversation in its prefix cache, and the requests that the live view shows.
const SESSION = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

async function ask(path, { body, headers, ...options } = {}) {
  const key = tabStorage.getItem(KEY);
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
  server.heardAt = performance.now();
  if (answer.status === 401) noteKeyNeeded(Boolean(key));
  if (!answer.ok) throw await readRefusal(answer);
  return answer;
}

// An error is an object with a message, or the message itself.
function readMessage(error) {
  const message = error?.message ?? error;
  return typeof message === "string" ? message : "";
}

async function readRefusal(answer) {
  const text = await answer.text().catch(() => "");
  try {
    const { error } = JSON.parse(text), message = readMessage(error);
    if (message) return new Refused(answer.status, message, error.param);
  } catch { /* Not of this server. */ }
  return new Refused(answer.status, `The server answered ${answer.status}.`);
}

function showBanner(text, offersKey = false) {
  const [words, button] = byId("banner").children;
  setText(words, text);
  button.hidden = !offersKey;
  byId("banner").hidden = !text;
}

const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });
let timer = 0;

function noteDown(words = "The server has not answered", why = "") {
  if (!server.isDown) Object.assign(server, { isDown: true, downSince: new Date() });
  document.body.dataset.down = "";
  showBanner(`${words} since ${clock.format(server.downSince)}.${why} This page goes on when it is back.`);
  clearTimeout(timer);
  timer = setTimeout(connect, 1500);
}

function noteUp() {
  if (server.isDown) speak("The server is back.");
  // It may say that there is no server, or no key.
  if (server.isDown || server.needsKey) showHint("");
  Object.assign(server, { isDown: false, needsKey: false });
  delete document.body.dataset.down;
  showBanner("");
}

// Reads the model, again and again until there is one.
async function connect() {
  clearTimeout(timer);
  try {
    const answer = await ask("v1/models", { signal: AbortSignal.timeout(10000) });
    const { data } = await answer.json();
    noteUp();
    showModels(data);
  } catch (error) {
    if (!(error instanceof Refused)) noteDown();
    // A server that refuses is there; one that has not yet answered is asked again.
    else if (error.status !== 401 && (error.status >= 500 || !server.model)) noteDown("The server has not been ready", ` ${error.message}`);
  }
}

// A page that asks nothing else looks now and then whether the server is there, and more often
// what several models are doing.
const QUIET_MILLISECONDS = 15000;

function checkServer() {
  const isDue = haveStates() || performance.now() - server.heardAt > QUIET_MILLISECONDS;
  if (document.visibilityState === "visible" && isDue && !server.isDown && !server.needsKey) connect();
}

setInterval(checkServer, 5000);
document.addEventListener("visibilitychange", checkServer);

function showModel(model) {
  server.model = model;
  setText(byId("model"), model.id);
  showTitle();
  // Of several models, one that was never loaded has none.
  const { input_modalities: reads, output_modalities: writes } = model.architecture
    ?? { input_modalities: ["text"], output_modalities: ["text"] };
  const chats = writes.includes("text");
  byId("attach").hidden = !reads.includes("image");
  byId("max_tokens").placeholder = findLimit();
  byId("to-list").hidden = byId("to-chat").hidden = byId("chat").hidden = !chats;
  setText(byId("only-live"), `${model.id} writes no text but ${writes.join(" and ")}, so there is no chat here.`);
  byId("only-live").hidden = chats;
  if (chats) delete document.body.dataset.only; else document.body.dataset.only = "live";
  showView();
}
