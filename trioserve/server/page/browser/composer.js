"use strict";

// Where a question is written.

function sendMessage() {
  const text = byId("prompt").value.trim();
  if (running || !server.model || (!text && !attached.length)) return;
  const { node, text: place } = addMessage("user", "You");
  place.append(text);
  if (attached.length) node.append(make("ul", { className: "pictures" }, ...attached.map((each) => make("li", {}, makePicture(each)))));
  turns.push({ role: "user", text, images: attached.splice(0), node });
  showAttached();
  byId("prompt").value = "";
  fitPrompt();
  log.scrollTop = log.scrollHeight;
  answer();
}

function setRunning(isRunning) {
  log.setAttribute("aria-busy", String(isRunning));
  const hadFocus = [byId("send"), byId("stop")].includes(document.activeElement);
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  if (hadFocus) byId(isRunning ? "stop" : "send").focus();
}

function fitPrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

byId("composer").addEventListener("submit", (event) => { event.preventDefault(); sendMessage(); });
byId("prompt").addEventListener("input", fitPrompt);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.abort());
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !byId("key-dialog").open) running.abort();
});
byId("new").addEventListener("click", () => {
  running?.abort();
  turns.length = 0;
  for (const each of byId("messages").querySelectorAll(".message")) each.remove();
  byId("welcome").hidden = false;
  byId("new").hidden = true;
  byId("prompt").focus();
});
