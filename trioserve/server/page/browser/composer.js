"use strict";

// Where a question is written, and where questions wait.

// Sends the question, or lets it wait for the end of the answer that is being written.
function submit() {
  const prompt = byId("prompt"), text = prompt.value.trim();
  if (!text && !attached.length && !shown.isHeld) return;
  if (!canAsk("Your text stays here.")) return;
  const created = Math.max(Date.now(), (shown.queue.at(-1)?.created ?? 0) + 1);
  if (text || attached.length) shown.queue.push({ id: makeId(), text, images: attached.splice(0), created });
  showAttached();
  prompt.value = "";
  fitHeight(prompt);
  shown.isHeld = false;
  sendNext(shown);
  keepWaiting(shown);
  showQueue();
  showRunning();
}

// Says why nothing can be asked now, if so.
function canAsk(comfort = "") {
  const why = explainWait();
  showHint(why && `${why} ${comfort}`.trim());
  return !why;
}

function explainWait() {
  if (server.needsKey) return "The server needs a key before it answers.";
  if (server.isDown) return "The server does not answer now.";
  if (!server.model) return "The page is not connected yet.";
  return explainSettings();
}

// Asks the question that has waited the longest, if no other tab has asked or removed it.
async function sendNext(conversation) {
  const [question] = conversation.queue, mustWait = () => conversation.run || conversation.isHeld;
  if (!question || conversation.isTaking || mustWait()) return;
  conversation.isTaking = question.isKept;
  const isHere = !question.isKept || await useStore((store) => store.hasWaiting(question.id)).catch(() => true);
  conversation.isTaking = false;
  // In the meantime, an answer may have begun, and the question may have been removed here.
  if (isHere && mustWait()) return;
  const isMine = isHere && conversation.queue[0]?.id === question.id;
  conversation.queue = conversation.queue.filter((each) => each.id !== question.id);
  if (!isMine) { sendNext(conversation); return; }
  askQuestion(conversation, conversation.listPath().at(-1)?.message.id ?? "", question);
  if (conversation === shown) showQueue();
}

function showQueue() {
  const { queue, isHeld, run } = shown;
  noteAlive(shown);
  byId("queue").hidden = !queue.length;
  setText(byId("queue-title"), isHeld && !run ? "Queued. Send asks it." : "Queued until the answer ends");
  byId("queued").replaceChildren(...queue.map((each) => {
    const remove = make("button", { type: "button", className: "quiet", "aria-label": `Remove ${makeTitle(each)}` }, "Remove");
    remove.addEventListener("click", () => {
      shown.queue = queue.filter((other) => other !== each);
      shown.isHeld &&= shown.queue.length > 0;
      removeWaiting(shown, each);
      showQueue();
      byId("prompt").focus();
    });
    return make("li", {}, make("span", {}, makeTitle(each)), remove);
  }));
}

function showHint(text) {
  setText(byId("hint"), text);
  byId("hint").hidden = !text;
}

function showRunning() {
  const isRunning = Boolean(shown.run);
  log.setAttribute("aria-busy", String(isRunning));
  const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
  byId("send").hidden = isRunning && !byId("prompt").value.trim() && !attached.length;
  setText(byId("send"), isRunning ? "Queue" : "Send");
  byId("stop").hidden = !isRunning;
  if (hadFocus) byId(isRunning ? "stop" : "send").focus();
}

function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

// Up in an empty field recalls the last question, and again the one before.
const recall = { text: "", at: 0 };

function recallQuestion(step) {
  const prompt = byId("prompt");
  if (prompt.value && prompt.value !== recall.text) return false;
  // In a question of several lines, the keys move the cursor first.
  const aside = step > 0 ? prompt.value.slice(0, prompt.selectionStart) : prompt.value.slice(prompt.selectionEnd);
  if (aside.includes("\n")) return false;
  const texts = shown.listPath().filter(({ message }) => message.role === "user" && message.text).map(({ message }) => message.text);
  const at = prompt.value ? recall.at + step : step;
  if (at < 0 || at > texts.length) return false;
  Object.assign(recall, { at, text: at ? texts.at(-at) : "" });
  prompt.value = recall.text;
  prompt.setSelectionRange(recall.text.length, recall.text.length);
  fitHeight(prompt);
  return true;
}

// The keyboard of a touch screen has no Shift+Enter, so its Enter is a line break.
const isTouch = matchMedia("(hover: none) and (pointer: coarse)");

// Questions that wait, and that the browser does not keep, are in this tab alone.
addEventListener("beforeunload", (event) => {
  if ([...alive.values()].some((each) => each.queue.some(({ isKept }) => !isKept))) event.preventDefault();
});
// A text that is not sent is there after F5.
addEventListener("pagehide", () => {
  const text = byId("prompt").value;
  try {
    if (text) tabStorage.setItem(DRAFT, text); else tabStorage.removeItem(DRAFT);
  } catch { /* There is no room for it. */ }
});
byId("to-prompt").addEventListener("click", () => byId("prompt").focus());
// A mouse leaves the focus where one writes, and a key at the button, which becomes Stop.
byId("send").addEventListener("click", ({ detail }) => { if (detail && !isTouch.matches) byId("prompt").focus(); });
byId("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
byId("prompt").addEventListener("input", () => { fitHeight(byId("prompt")); showRunning(); });
byId("prompt").addEventListener("keydown", (event) => {
  if (event.isComposing || event.shiftKey || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    if (recallQuestion(event.key === "ArrowUp" ? 1 : -1)) event.preventDefault();
  } else if (event.key === "Enter" && !isTouch.matches) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
