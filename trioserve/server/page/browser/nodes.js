"use strict";

// Nodes of the document.

// The page is served at the root of the API, with or without a slash behind it. So all
// addresses begin with its own path, and a proxy may put it below any other.
const ROOT = location.pathname.replace(/\/?$/, "/");
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
  if (!navigator.clipboard) return [];
  const button = make("button", { type: "button", className: "quiet" }, name);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(read()).catch(() => {});
    setText(button, "Copied");
    setTimeout(() => setText(button, name), 1500);
  });
  return [button];
}

function formatSeconds(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
