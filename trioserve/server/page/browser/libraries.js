"use strict";

// Code in colours and formulas. Both come from libraries that are loaded when a message needs
// them, and are drawn a little in each frame, so that the page stays quick.

const loading = {};
function loadLibrary(name) { return loading[name] ??= import(name).then((module) => module.default); }

// What was drawn, by its kind and source: text around it is built again while an answer grows.
const drawn = new Map();
const MAX_DRAWN = 300;
const FRAME_SECONDS = 0.008;
let waiting = [];

// Replaces the text of a node by what `draw` makes of it, and leaves it where that fails.
function drawInto(node, key, library, draw) {
  const showDrawn = () => node.replaceChildren(drawn.get(key).cloneNode(true));
  if (drawn.has(key)) { showDrawn(); return; }
  const job = (loaded) => {
    // A later node may have taken its place, and an equal one may have been drawn before it.
    if (!node.isConnected) return;
    if (!drawn.has(key)) {
      const fragment = document.createDocumentFragment();
      fragment.append(draw(loaded));
      if (drawn.size >= MAX_DRAWN) drawn.delete(drawn.keys().next().value);
      drawn.set(key, fragment);
    }
    showDrawn();
  };
  loadLibrary(library).then((loaded) => drawLater(() => job(loaded)), () => {});
}

function drawLater(job) {
  if (waiting.push(job) === 1) requestAnimationFrame(drawSome);
}

function drawSome() {
  const ends = performance.now() + 1000 * FRAME_SECONDS;
  let numDrawn = 0;
  keepAtEnd(() => {
    while (numDrawn < waiting.length && performance.now() < ends) {
      // A source may have errors, or be more than the library can take.
      try { waiting[numDrawn++](); } catch { /* The text stays. */ }
    }
  });
  waiting = waiting.slice(numDrawn);
  if (waiting.length) requestAnimationFrame(drawSome);
}

// ---- Code -----------------------------------------------------------------------------

// The library reads some parts of a text many times.
const MAX_COLOURED = 30_000;

function colour(node, text, language) {
  if (!language || text.length > MAX_COLOURED) return;
  drawInto(node, `code ${language} ${text}`, "highlight", (highlight) => {
    if (!highlight.getLanguage(language)) return text;
    const { _emitter } = highlight.highlight(text, { language, ignoreIllegals: true });
    return makeTokens(_emitter.rootNode);
  });
}

// The library has a tree of tokens besides its HTML.
function makeTokens({ scope, children }) {
  const nodes = children.map((each) => (typeof each === "string" ? each : makeTokens(each)));
  // A scope such as title.function has its own name in front.
  return fill(scope ? make("span", { className: `token ${scope.split(".").join(" ")}` }) : document.createDocumentFragment(), nodes);
}

// ---- Formulas -------------------------------------------------------------------------

const MAX_FORMULA = 5000;

function makeFormula(source, isBlock) {
  const node = make(isBlock ? "div" : "span", { className: "formula" }, make("code", {}, source.trim()));
  if (source.length <= MAX_FORMULA) {
    drawInto(node, `formula ${isBlock} ${source}`, "temml", (temml) => {
      loadFormulaStyle();
      const options = { displayMode: isBlock, throwOnError: true, maxSize: [20, 20], maxExpand: 200 };
      return moveStyles(temml.__renderToMathMLTree(source, options)).toNode();
    });
  }
  return node;
}

// The policy forbids attributes of style. A node's own property is allowed.
function moveStyles(tree) {
  const { style, ...attributes } = tree.attributes ?? {};
  if (style) {
    tree.attributes = attributes;
    for (const each of style.split(";").filter(Boolean)) {
      const [name, value] = each.split(":");
      tree.style[name.trim()] = value.trim();
    }
  }
  for (const each of tree.children ?? []) moveStyles(each);
  return tree;
}

let formulaStyle = null;

function loadFormulaStyle() {
  formulaStyle ??= addStyle("libraries/temml.css").catch(() => { formulaStyle = null; });
}

async function addStyle(path) {
  const sheet = await new CSSStyleSheet().replace(await (await ask(path)).text());
  // The page has no fonts of its own.
  [...sheet.cssRules].forEach((rule, i) => { if (rule instanceof CSSFontFaceRule) sheet.deleteRule(i); });
  document.adoptedStyleSheets.push(sheet);
}
