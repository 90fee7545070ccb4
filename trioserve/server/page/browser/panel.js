"use strict";

// The live view beside the chat, on a wide screen. It is folded until somebody asks for it.

const PANEL_KEY = "trioserve-live";

function showPanel(isOpen) {
  document.body.toggleAttribute("data-panel", isOpen);
  byId("show-panel").ariaExpanded = String(isOpen);
  try {
    if (isOpen) localStorage.setItem(PANEL_KEY, "open"); else localStorage.removeItem(PANEL_KEY);
  } catch { /* The browser keeps nothing. */ }
  showView();
}

function loadPanel() {
  let isOpen = location.hash.startsWith("#live");
  try { isOpen ||= localStorage.getItem(PANEL_KEY) !== null; } catch { /* It is folded. */ }
  showPanel(isOpen);
}

byId("show-panel").addEventListener("click", () => showPanel(!document.body.hasAttribute("data-panel")));
