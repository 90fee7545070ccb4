"use strict";

// A small part of Markdown, as models write it. An answer is cut into blocks, and only blocks
// whose text has changed are built again. A model may write anything, so each character is
// read a fixed number of times: no pattern reads again what it has read in vain.

const MARK = /^(?:`{3,}|~{3,}|#{1,6}(?=\s)|>|(?:[-*+]|\d{1,9}[.)])(?=\s))/;
// Marks of a formula that has lines of its own, and their ends.
const FORMULAS = { "$$": "$$", "\\[": "\\]" };
const KINDS = { "`": "code", "~": "code", "#": "heading", ">": "quote" };
const MAX_DEPTH = 8;

// Of a message, so many formulas, tables and blocks of code are drawn; more would freeze the
// page, and are text.
const MAX_RICH = 1000;
let numRich = 0;

function takeRich() { return ++numRich <= MAX_RICH; }

// Tells what a line is by its beginning. `rest` is the text behind its mark.
function readLine(line) {
  const inside = line.trimStart(), indent = line.length - inside.length;
  const [mark] = MARK.exec(inside) ?? [""];
  const rest = inside.slice(mark.length).trim();
  let kind = !inside ? "empty" : mark ? KINDS[mark[0]] ?? "item" : "text";
  if (isRule(inside)) kind = "rule";
  // Three backticks may be code inside a line.
  if (mark[0] === "`" && rest.includes("`")) kind = "text";
  if (kind === "text" && beginsFormula(inside)) kind = "formula";
  return { kind, indent, mark, rest: kind === "text" ? inside : rest };
}

function isNumbered(mark) { return /\d/.test(mark); }

function isRule(text) {
  if (!/^[-*_]/.test(text)) return false;
  const marks = text.replace(/\s+/g, "");
  return marks.length > 2 && marks === marks[0].repeat(marks.length);
}

// A formula ends where its line does, or on a later line. One that ends before is in a text.
function beginsFormula(text) {
  const end = FORMULAS[text.slice(0, 2)];
  if (!end || text[2] === "$") return false;
  const found = text.indexOf(end, 2);
  return found < 0 || !text.slice(found + 2).trim();
}

function isBelowHead(line, head) {
  return head.includes("|") && line.includes("|") && line.includes("-") && /^[\s:|-]+$/.test(line);
}

// Cuts a text into blocks, from the beginning of one of them on. Each has a kind, lines, the
// place where it begins, and the place of its last line.
function splitBlocks(text, start) {
  const blocks = [];
  let open = null, fence = "", isGap = false;
  const ends = (line, { kind, mark, rest }) => open.kind === "code"
    ? kind === "code" && mark.startsWith(fence) && !rest : line.trimEnd().endsWith(fence);
  const begin = (kind, line, at) => blocks.push(open = { kind, lines: [line], at, last: at });
  // Bullets and numbers at one indent are two lists.
  const isOtherList = ({ kind, indent, mark }) => kind === "item" && open?.kind === "item"
    && indent <= open.indent + 1 && isNumbered(mark) !== isNumbered(open.mark);
  for (let at = start, end; at <= text.length; at = end + 1) {
    end = text.indexOf("\n", at);
    if (end < 0) end = text.length;
    const line = text.slice(at, end).replace(/\r$/, "");
    const read = readLine(line), { kind, indent, mark } = read;
    // No formula has an empty line, so dollars that mean none do not swallow an answer.
    if (fence && (open.kind === "code" || kind !== "empty")) {
      open.lines.push(line);
      if (ends(line, read)) { fence = ""; open = null; }
    } else if (kind === "empty") {
      if (fence) { fence = ""; open = null; }
      // Items with empty lines between them are one list.
      if (open?.kind === "item") isGap = true; else open = null;
      continue;
    } else if (kind === "code") {
      begin(kind, line, at);
      fence = mark;
    } else if (kind === "formula") {
      begin(kind, line, at);
      const inside = line.trim();
      fence = FORMULAS[inside.slice(0, 2)];
      if (inside.indexOf(fence, 2) > 0) { fence = ""; open = null; }
    } else if (kind === "heading" || kind === "rule") {
      begin(kind, line, at);
      open = null;
    } else if (kind === "text" && open?.kind === "text" && isBelowHead(line, open.lines.at(-1))) {
      const head = open.lines.pop(), { last } = open;
      if (!open.lines.length) blocks.pop();
      begin("table", head, last);
      open.lines.push(line);
    } else if (!open || (kind !== "text" && kind !== open.kind) || (isGap && kind === "text" && indent < 2) || isOtherList(read)) {
      begin(kind, line, at);
      Object.assign(open, { indent, mark });
    } else {
      open.lines.push(line);
      open.last = at;
    }
    isGap = false;
  }
  return blocks;
}

const BUILDERS = {
  code: buildCode,
  formula: (lines) => {
    const text = lines.join("\n").trim(), end = FORMULAS[text.slice(0, 2)];
    if (!takeRich()) return make("p", {}, text);
    const isClosed = text.length > 3 && text.endsWith(end);
    // One that is still written stays text.
    return isClosed ? makeFormula(text.slice(2, -2), true) : make("div", { className: "formula" }, make("code", {}, text.slice(2)));
  },
  heading: ([line]) => {
    const { mark, rest } = readLine(line);
    const bare = trimEnd(rest, "#");
    // The name C# ends with one, too.
    return fill(make(mark.length < 3 ? "h4" : "h5"), readInline(/\S$/.test(bare) ? rest : bare.trimEnd()));
  },
  item: buildList,
  quote: buildQuote,
  rule: () => make("hr"),
  table: buildTable,
  text: (lines) => fill(make("p"), readInline(lines.map((line) => line.trim()).join("\n"))),
};

function trimEnd(text, marks) {
  let end = text.length;
  while (end > 0 && marks.includes(text[end - 1])) end--;
  return text.slice(0, end);
}

function buildCode(lines) {
  const { indent, mark, rest } = readLine(lines[0]);
  const last = readLine(lines.at(-1));
  const isClosed = lines.length > 1 && last.mark.startsWith(mark) && !last.rest;
  const [language] = /^[\w+#.-]*/.exec(rest);
  // A block inside an item is indented as a whole.
  const outdent = (line) => line.slice(Math.min(indent, line.length - line.trimStart().length));
  const text = lines.slice(1, isClosed ? -1 : undefined).map(outdent).join("\n");
  if (!takeRich()) return make("pre", { className: "plain" }, text);
  const bar = make("div", { className: "bar" }, ...(language ? [language] : []), makeCopy(() => text));
  const code = make("code", {}, text);
  // Code that is still written would be coloured anew for each token.
  if (isClosed) colour(code, text, language);
  const pre = make("pre", { tabIndex: 0, "aria-label": language ? `Code in ${language}` : "Code" }, code);
  return make("div", { className: "code" }, bar, pre);
}

function buildList(lines) {
  const open = [];
  for (const line of lines) {
    const { kind, indent, mark, rest } = readLine(line);
    if (kind !== "item") { fill(open.at(-1).item, ["\n", ...readInline(rest)]); continue; }
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    const isDeeper = () => !open.length || (indent > open.at(-1).indent + 1 && open.length < MAX_DEPTH);
    if (!isDeeper() && open.length > 1 && isNumbered(mark) !== isNumbered(open.at(-1).mark)) open.pop();
    if (isDeeper()) {
      const list = isNumbered(mark) ? make("ol", { start: parseInt(mark, 10) }) : make("ul");
      open.at(-1)?.item.append(list);
      open.push({ indent, mark, list });
    }
    const item = open.at(-1).item = makeItem(rest);
    open.at(-1).list.append(item);
  }
  return open[0].list;
}

// A task has a box in front: [ ] or [x].
function makeItem(text) {
  const [box, mark] = /^\[([ xX])\](?=\s)/.exec(text) ?? [];
  if (!box) return fill(make("li"), readInline(text));
  const isDone = mark !== " ";
  const input = make("input", { type: "checkbox", disabled: true, checked: isDone, "aria-label": isDone ? "Done" : "Not done" });
  return fill(make("li", { className: "task-item" }, input), readInline(text.slice(box.length)));
}

function buildQuote(lines, depth) {
  const inside = lines.map((line) => line.trimStart().replace(/^> ?/, "")).join("\n");
  const nodes = depth < MAX_DEPTH ? splitBlocks(inside, 0).map((each) => build(each, depth + 1)) : [inside];
  return fill(make("blockquote"), nodes);
}

function buildTable(lines) {
  if (!takeRich()) return make("p", {}, lines.join("\n"));
  const sides = splitCells(lines[1]).map(findSide);
  const cell = (text, tag, i) => fill(make(tag, sides[i] ? { className: sides[i] } : {}), readInline(text.trim()));
  const row = (line, tag) => fill(make("tr"), splitCells(line).map((each, i) => cell(each, tag, i)));
  const head = make("thead", {}, row(lines[0], "th"));
  const body = fill(make("tbody"), lines.slice(2).map((line) => row(line, "td")));
  return make("div", { className: "scroller", tabIndex: 0, role: "region", "aria-label": "Table" }, make("table", {}, head, body));
}

// A backslash before a bar makes it a part of its cell.
function splitCells(line) {
  const inside = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inside.split(/(?<!\\)\|/).map((each) => each.replaceAll("\\|", "|"));
}

function findSide(rule) {
  const text = rule.trim();
  return !text.endsWith(":") ? "" : text.startsWith(":") ? "center" : "right";
}

function build({ kind, lines }, depth) { return BUILDERS[kind](lines, depth); }

const TAGS = { "*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del" };
// The target of a link, with parentheses or a title in it.
const TARGET = /\(([^()\s]{1,2000}(?:\([^()\s]{0,300}\)[^()\s]{0,300})?)(?: {1,9}"[^"]{0,300}")?\)/y;

// An image that the message itself has. A drawing (SVG) of a few lines can hang the browser.
const DATA_TARGET = /\((data:image\/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=]+)\)/y;

// The text inside a block. Emphasis that has begun and not ended is a frame, and at most one
// of each kind is open, so frames are at most six deep.
class Inline {
  constructor(text, hasLinks) {
    Object.assign(this, { text, hasLinks, at: 0, ticks: null, bracket: -1, target: null, data: null, ends: {} });
    this.frames = [{ mark: "", nodes: [] }];
  }

  read() {
    const token = /\\[\\`*_~$[\]()|]|`+|\*+|_+|~+|\$+|!?\[|https?:\/\//g;
    for (let found; (found = token.exec(this.text)); token.lastIndex = this.at) {
      this.add(this.text.slice(this.at, found.index));
      this.at = token.lastIndex;
      this.take(found[0], found.index);
    }
    this.add(this.text.slice(this.at));
    while (this.frames.length > 1) this.give();
    return this.frames[0].nodes;
  }

  take(mark, start) {
    if (mark === "\\(" || mark === "\\[") this.takeFormula(mark, mark === "\\(" ? "\\)" : "\\]");
    else if (mark[0] === "\\") this.add(mark[1]);
    else if (mark[0] === "$") this.takeDollars(mark, start);
    else if (mark[0] === "!") this.takeImage();
    else if (mark[0] === "`") this.takeCode(mark, start);
    else if (mark === "[") this.takeLink();
    else if (mark[0] === "h") this.takeAddress(mark);
    else this.takeEmphasis(mark, start);
  }

  add(node) {
    const { nodes } = this.frames.at(-1);
    if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
    else if (node !== "") nodes.push(node);
  }

  takeCode(mark, start) {
    this.ticks ??= pairTicks(this.text);
    const end = this.ticks.get(start);
    if (end === undefined) { this.add(mark); return; }
    const code = this.text.slice(this.at, end);
    const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim();
    this.add(make("code", {}, isPadded ? code.slice(1, -1) : code));
    this.at = end + mark.length;
  }

  // Returns the place of the next `mark`, and looks for it once, however often it is asked.
  findNext(mark) {
    if (!(this.ends[mark] >= this.at)) {
      const found = this.text.indexOf(mark, this.at);
      this.ends[mark] = found < 0 ? Infinity : found;
    }
    return this.ends[mark];
  }

  takeFormula(mark, end) {
    const found = this.findNext(end);
    if (found === Infinity || !this.text.slice(this.at, found).trim()) { this.add(mark[0] === "\\" ? mark[1] : mark); return; }
    const source = this.text.slice(this.at, found);
    this.add(takeRich() ? makeFormula(source, false) : mark + source + end);
    this.at = found + end.length;
  }

  // A price is no formula: "$5 and $6" has a blank before the second dollar, "$5-$6" a digit behind.
  takeDollars(mark, start) {
    const found = mark.length < 3 ? this.findNext(mark) : Infinity;
    const isFormula = found < Infinity && /\S/.test(this.text[this.at] ?? " ") && /\S/.test(this.text[found - 1])
      && !/[\p{L}\p{N}]/u.test(this.text[start - 1] ?? " ") && !/\d/.test(this.text[found + mark.length] ?? " ");
    if (isFormula) this.takeFormula(mark, mark); else this.add(mark);
  }

  // An image of another server would tell it who reads the answer, so it becomes a link.
  takeImage() {
    if (this.bracket < this.at) this.findTarget();
    const target = this.data ?? this.target;
    if (!this.hasLinks || !target) { this.add("!["); return; }
    const name = this.text.slice(this.at, this.bracket);
    if (this.data) this.add(make("img", { src: target[1], alt: name }));
    else for (const each of makeImageLink(name, target[1])) this.add(each);
    this.at = this.bracket + 1 + target[0].length;
  }

  takeLink() {
    if (this.bracket < this.at) this.findTarget();
    if (!this.hasLinks || !this.target) { this.add("["); return; }
    const label = this.text.slice(this.at, this.bracket) || this.target[1];
    for (const each of makeLink(new Inline(label, false).read(), this.target[1])) this.add(each);
    this.at = this.bracket + 1 + this.target[0].length;
  }

  // Looks for the next closing bracket once, however many opening ones are before it.
  findTarget() {
    const found = this.text.indexOf("]", this.at);
    this.bracket = found < 0 ? Infinity : found;
    TARGET.lastIndex = found + 1;
    this.target = found < 0 ? null : TARGET.exec(this.text);
    DATA_TARGET.lastIndex = found + 1;
    this.data = found < 0 ? null : DATA_TARGET.exec(this.text);
  }

  takeAddress(mark) {
    const rest = /[^\s<>"'`)\]]*/y;
    rest.lastIndex = this.at;
    // What ends a sentence, or emphasis, is no part of the address.
    const more = trimEnd(rest.exec(this.text)[0], ".,;:!?*_");
    this.at += more.length;
    if (!more || !this.hasLinks) this.add(mark + more);
    else this.add(makeLink([mark + more], mark + more)[0]);
  }

  takeEmphasis(mark, start) {
    const before = this.text[start - 1] ?? " ", after = this.text[this.at] ?? " ";
    const isLetter = (letter) => mark[0] === "_" && /[\p{L}\p{N}]/u.test(letter);
    let left = mark.length;
    // One or three tildes mean themselves.
    if (mark[0] === "~" && left !== 2) { this.add(mark); return; }
    if (/\S/.test(before) && !isLetter(after)) left = this.close(mark[0], left);
    const opens = /\S/.test(after) && !isLetter(before) ? Math.min(left, 3) : 0;
    this.add(mark[0].repeat(left - opens));
    if (opens > 1) this.open(mark[0].repeat(2));
    if (opens % 2) this.open(mark[0]);
  }

  open(mark) {
    const found = this.frames.findIndex((each) => each.mark === mark);
    // The later one of two is more likely to be meant.
    if (found > 0 && found === this.frames.length - 1) this.give();
    else if (found > 0) { this.add(mark); return; }
    this.frames.push({ mark, nodes: [] });
  }

  // Ends what the characters can end, the innermost first. Returns how many are left.
  close(letter, left) {
    const [outer, inner] = this.frames.slice(-2);
    // Of three characters that began, two or one may end first.
    if (left === 2 && inner?.mark === letter && outer.mark === letter.repeat(2) && !outer.nodes.length) {
      [outer.mark, inner.mark] = [inner.mark, outer.mark];
    }
    for (;;) {
      const found = this.frames.findLastIndex(({ mark }) => mark[0] === letter && mark.length <= left);
      if (found < 0) return left;
      while (this.frames.length > found + 1) this.give();
      const { mark, nodes } = this.frames.pop();
      this.add(fill(make(TAGS[mark]), nodes));
      left -= mark.length;
    }
  }

  // Gives the nodes of the innermost frame to the one around it: nothing has ended it.
  give() {
    const { mark, nodes } = this.frames.pop();
    this.add(mark);
    for (const each of nodes) this.add(each);
  }
}

function readInline(text) { return new Inline(text, true).read(); }

// Maps the place of each run of backticks to that of the next one with the same length.
function pairTicks(text) {
  const pairs = new Map(), next = new Map();
  for (const { index, 0: run } of [...text.matchAll(/`+/g)].reverse()) {
    pairs.set(index, next.get(run.length));
    next.set(run.length, index);
  }
  return pairs;
}

// A model may write any address. Only these lead out of the page, and they carry nothing.
function makeLink(label, address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return label;
  return [fill(make("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }), label)];
}

function makeImageLink(name, address) {
  const why = "The image is on another server, which would learn of you if the page loaded it.";
  const link = makeLink([name || address], address);
  return [...link, make("span", { className: "muted", title: why }, " (an image of another server, not loaded)")];
}

class Markdown {
  constructor(root) { this.root = root; this.blocks = []; }

  // Shows a text that only ever grows. The last line may become anything, and may join its
  // block to the one before; no earlier block changes.
  show(text) {
    const first = Math.max(0, this.blocks.length - 2);
    const fresh = splitBlocks(text, this.blocks[first]?.at ?? 0);
    numRich = this.blocks[first - 1]?.numRich ?? 0;
    fresh.forEach((block, i) => {
      const old = this.blocks[first + i];
      block.source = block.lines.join("\n");
      if (old?.kind === block.kind && old.source === block.source) {
        block.numRich = numRich = old.numRich;
        return;
      }
      const node = build(block, 0);
      block.numRich = numRich;
      if (old) this.root.children[first + i].replaceWith(node);
      else this.root.append(node);
    });
    this.blocks.splice(first, Infinity, ...fresh);
    while (this.root.children.length > this.blocks.length) this.root.lastElementChild.remove();
  }
}
