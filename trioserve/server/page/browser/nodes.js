"use strict";

// Nodes of a document, and what the page and /docs share besides.

// A tab keeps its key under this name, for the page and for /docs.
const KEY = "trioserve-key";
const CHOSEN = "trioserve-model";
const DRAFT = "trioserve-draft";
const tabStorage = findTabStorage();

// A browser may keep nothing; what a tab keeps is then gone with the document.
function findTabStorage() {
  try { return sessionStorage; } catch { /* Cookies and site data are blocked. */ }
  const kept = new Map();
  return {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, value) => kept.set(name, value),
    removeItem: (name) => kept.delete(name),
  };
}

const byId = (id) => document.getElementById(id);

// Text is only ever put into text nodes. No function here takes HTML.
function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name in node) node[name] = value; else node.setAttribute(name, value);
  }
  return fill(node, children);
}

// One by one: a call takes a hundred thousand arguments at most.
function fill(node, children) {
  for (const each of children) node.append(each);
  return node;
}

// A long name of a function may be broken behind its dots, and not in the middle of a word.
function breakAtDots(name) {
  return name.split(".").flatMap((each, i) => (i ? [".", make("wbr"), each] : [each]));
}

// Replacing equal text would make browsers lay the page out again, and screen readers speak.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function speak(text) { setText(byId("spoken"), text); }

function makeCopy(read, name = "Copy") {
  const button = make("button", { type: "button", className: "quiet" }, name);
  button.addEventListener("click", async () => {
    const isCopied = await copyText(read()).catch(() => false);
    setText(button, isCopied ? "Copied" : "Not copied");
    setTimeout(() => setText(button, name), 1500);
  });
  return button;
}

// Browsers give the clipboard to secure addresses alone; an old way is left for the others.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true);
  const field = make("textarea", { value: text, className: "unseen" });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused.focus();
  return isCopied;
}

function formatSeconds(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
