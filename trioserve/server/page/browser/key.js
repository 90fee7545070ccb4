"use strict";

// The key.

function noteKeyNeeded(isWrong) {
  if (isWrong) tabStorage.removeItem(KEY);
  showKeyButton();
  server.needsKey = true;
  showBanner("This server needs a key.", true);
  const dialog = byId("key-dialog");
  setText(byId("key-wrong"), isWrong ? "The server does not know the key." : "");
  if (!dialog.open) dialog.showModal();
}

function showKeyButton() { byId("forget-key").hidden = !tabStorage.getItem(KEY); }

byId("key-dialog").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  // fetch throws for letters that a header cannot have.
  if (!/^[!-~]+$/.test(key)) {
    setText(byId("key-wrong"), "A key has visible ASCII characters alone.");
    return;
  }
  tabStorage.setItem(KEY, key);
  byId("key").value = "";
  byId("key-dialog").close("given");
  // The button that asked for it goes.
  if (!isTouch.matches) byId("prompt").focus();
  showKeyButton();
  connect();
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("banner").querySelector("button").addEventListener("click", () => byId("key-dialog").showModal());
byId("forget-key").addEventListener("click", () => {
  tabStorage.removeItem(KEY);
  location.reload();
});
