"use strict";

// The conversation that is shown, and what is done with its messages.

let shown = new Conversation();
// Conversations with an answer that is being written, or with questions that wait. They go on
// when another one is shown.
const alive = new Map();
const log = byId("log");

function noteAlive(conversation) {
  if (conversation.run || conversation.queue.length) alive.set(conversation.id, conversation);
  else alive.delete(conversation.id);
}

// With so many messages, the browser lays out those alone that are near. It then guesses where
// the others are, so the scroll bar moves by itself.
const MANY = 200;

function findView(conversation, message) {
  const { views } = conversation;
  if (!views.has(message.id)) views.set(message.id, new MessageView(conversation, message));
  return views.get(message.id);
}

// Shows the path. Nodes that are there already stay.
function showPath() {
  const path = shown.listPath(), views = path.map(({ message }) => findView(shown, message));
  const nodes = new Set(views.map((each) => each.node));
  for (const each of [...byId("messages").querySelectorAll(".message")]) if (!nodes.has(each)) each.remove();
  let before = byId("welcome");
  for (const node of nodes) {
    if (before.nextElementSibling !== node) before.after(node);
    before = node;
  }
  views.forEach((each, i) => each.update(path[i].siblings, path[i + 1]?.message));
  byId("welcome").hidden = path.length > 0;
  byId("messages").classList.toggle("many", path.length > MANY);
  byId("new").hidden = !path.length;
  showTitle();
  showRunning();
  noteScroll();
}

function showTitle() { document.title = [shown.title || server.model?.id, "trioserve"].filter(Boolean).join(" · "); }

function show(conversation) {
  shown = conversation;
  showPath();
  showQueue();
  showUndo("");
  showHint("");
  refreshList();
  goToEnd();
}

// ---- Its address ----------------------------------------------------------------------
// The part behind # names the view and the conversation, so that both are there after F5 and
// Back.

const findAddress = (id, view = "chat") => (id ? `#${view}/${id}` : `#${view}`);
const readAddress = () => /^#(chat|live)\/(.+)/.exec(location.hash)?.[2] ?? "";

function setAddress(id, isNew) {
  for (const view of ["chat", "live"]) byId(`to-${view}`).href = findAddress(id, view);
  const address = findAddress(id, location.hash.startsWith("#live") ? "live" : "chat");
  if (location.hash !== address) history[isNew ? "pushState" : "replaceState"](null, "", address);
}

async function openFromAddress() {
  const id = readAddress();
  if (id === shown.id || (!id && !shown.isKept)) return;
  const found = id && (alive.get(id) ?? await load(id));
  // Another one may have been asked for in the meantime.
  if (readAddress() !== id) return;
  show(found || new Conversation());
  // Other tabs may have written to one that was alive.
  if (alive.has(id)) noteOtherTab(id);
  setAddress(found ? id : "", false);
}

async function load(id) {
  const found = await useStore((store) => store.load(id)).catch(() => null);
  return found && new Conversation(found.head, found.messages, found.waiting);
}

function beginNew() {
  show(new Conversation());
  setAddress("", true);
  byId("prompt").focus();
}

addEventListener("hashchange", openFromAddress);
byId("new").addEventListener("click", beginNew);

// Shows what another tab has written; null means that it has deleted all.
async function noteOtherTab(id) {
  refreshList();
  const mine = shown, { numWritten } = mine;
  if (!mine.isKept || (id !== null && id !== mine.id)) return;
  const fresh = await load(mine.id);
  if (shown !== mine) return;
  // What this tab has written in the meantime is newer.
  if (mine.numWritten !== numWritten) { noteOtherTab(id); return; }
  if (!fresh) {
    leave(mine);
    showHint("This conversation was deleted in another tab.");
    return;
  }
  mine.queue = [...fresh.queue, ...mine.queue.filter((each) => !each.isKept)];
  mine.isHeld ||= mine.queue.length > 0 && !mine.run && !mine.isTaking;
  showQueue();
  // The end of its own answer looks again.
  mine.isStale = Boolean(mine.run);
  if (mine.run) return;
  // Each tab keeps the branches that it shows.
  Object.assign(mine, { title: fresh.title, chosen: { ...fresh.chosen, ...mine.chosen } });
  for (const [messageId, message] of fresh.messages) {
    const before = mine.messages.get(messageId);
    const isSame = JSON.stringify(before) === JSON.stringify(message);
    if (isSame || mine.views.get(messageId)?.editor) fresh.messages.set(messageId, before);
    else mine.views.delete(messageId);
  }
  mine.messages = fresh.messages;
  keepAtEnd(showPath);
}

// Shows a new conversation in the place of one that is gone.
function leave(conversation) {
  conversation.queue = [];
  conversation.isGone = true;
  noteAlive(conversation);
  conversation.run?.controller.abort();
  if (conversation !== shown) return;
  show(new Conversation());
  setAddress("", false);
}

// ---- Messages -------------------------------------------------------------------------

function chooseBranch(message, act) {
  const conversation = shown;
  conversation.chosen[message.parent] = message.id;
  showPath();
  const view = findView(conversation, message);
  view.focus(act);
  // The last branch has no later one.
  if (document.activeElement.disabled ?? true) view.focus(act === "after" ? "before" : "after");
  view.node.scrollIntoView({ block: "nearest" });
  keep(conversation, []);
}

function changeText(message, text) {
  if (text === message.text) return;
  const isTitle = shown.isTitle(message);
  message.text = text;
  if (isTitle) shown.renewTitle();
  if (message.role === "assistant") Object.assign(message, { reason: "edited", note: undefined, isWrong: false });
  // Its text did not only grow.
  shown.views.delete(message.id);
  showPath();
  keep(shown, [message]);
}

function addBranch(conversation, { role, parent, images, model }, text) {
  if (role === "user") { askQuestion(conversation, parent, { text, images }); return; }
  const message = conversation.add({ role, parent, model, text, reason: "edited" });
  showPath();
  findView(conversation, message).focus("edit");
  keep(conversation, [message]);
}

// A question that has waited under an `id` of its own stops to wait where it is kept.
function askQuestion(conversation, parent, { text, images, id }) {
  const question = conversation.add({ role: "user", parent, text, images });
  if (conversation === shown) setAddress(conversation.id, false);
  keep(conversation, [question], id ? [id] : []);
  return answer(conversation, question);
}

function askAgain(conversation, question) {
  byId("prompt").focus();
  if (canAsk()) answer(conversation, question);
}

function deleteMessage(message) {
  const conversation = shown;
  const { removed, moved, undo } = conversation.remove(message);
  showPath();
  const ids = removed.map((each) => each.id);
  const isEmpty = !conversation.messages.size;
  if (isEmpty) forget(conversation); else keep(conversation, moved, ids);
  showUndo(removed.length > 1 ? `${removed.length} messages are deleted.` : "The message is deleted.", () => {
    undo();
    if (isEmpty) setAddress(conversation.id, false);
    keep(conversation, [...removed, ...moved]);
    if (conversation === shown) showPath();
  });
}

function forget(conversation) {
  conversation.isKept = false;
  for (const each of conversation.queue) each.isKept = false;
  setAddress("", false);
  useStore((store) => store.remove(conversation.id)).then(() => { tellTabs(conversation.id); refreshList(); });
}

// Offers to undo a deletion, until something else happens.
function showUndo(text, undo) {
  byId("undo").hidden = !text;
  setText(byId("undo").firstElementChild, text);
  const button = byId("undo").lastElementChild;
  button.onclick = () => {
    showUndo("");
    undo();
    byId("prompt").focus();
    speak("It is back.");
  };
  if (text) button.focus();
}

// ---- The end of the log ---------------------------------------------------------------

const isAtEnd = (slack) => log.scrollHeight - log.scrollTop - log.clientHeight < slack;

function keepAtEnd(change) {
  const wasAtEnd = isAtEnd(60);
  change();
  if (wasAtEnd) log.scrollTop = log.scrollHeight;
  noteScroll();
}

function noteScroll() {
  const isFar = !isAtEnd(120);
  if (!isFar && document.activeElement === byId("to-end")) byId("prompt").focus();
  byId("to-end").hidden = !isFar;
}

let readsEnd = true, height = 0;

function goToEnd() {
  readsEnd = true;
  stayAtEnd();
  // Some browsers measure what has come near a frame later.
  requestAnimationFrame(() => requestAnimationFrame(stayAtEnd));
}

// A field that grows, a narrower window, an image that is loaded, or a message that is laid out
// does not hide the end from those who read it.
function stayAtEnd() {
  height = log.clientHeight;
  if (readsEnd) log.scrollTop = log.scrollHeight;
  noteScroll();
}

log.addEventListener("scroll", () => {
  // A window that has just become lower hides the end, and not who reads it.
  if (log.clientHeight === height) readsEnd = isAtEnd(60);
  noteScroll();
});
new ResizeObserver(stayAtEnd).observe(log);
log.addEventListener("load", stayAtEnd, true);
log.addEventListener("contentvisibilityautostatechange", stayAtEnd);
byId("to-end").addEventListener("click", () => { goToEnd(); byId("prompt").focus(); });
