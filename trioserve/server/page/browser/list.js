"use strict";

// The list of conversations: search, names, deletion.

const list = byId("list");
const written = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });
const MAX_NAME = 200;
let listState = "", openMenu = "";

// Where there is room, it stays open beside the chat, also after F5.
const hasRoom = matchMedia("(min-width: 60rem)");
const OPEN = "trioserve-list";

function openList() {
  if (hasRoom.matches) list.show(); else list.showModal();
  byId("to-list").ariaExpanded = "true";
  if (hasRoom.matches) tabStorage.setItem(OPEN, "open");
  listState = "";
  noteList("");
  return refreshList();
}

function closeList() {
  list.close();
  tabStorage.removeItem(OPEN);
}

function closeDrawer() { if (list.matches(":modal")) list.close(); }

list.addEventListener("close", () => { byId("to-list").ariaExpanded = "false"; });
hasRoom.addEventListener("change", () => {
  if (list.open) { list.close(); openList(); }
});

async function refreshList() {
  // A name that is being written is not taken away.
  if (!list.open || list.querySelector(".rename")) return;
  const words = byId("search").value.trim();
  const heads = await useStore((store) => store.list(words)).catch(() => []);
  if (words !== byId("search").value.trim() || list.querySelector(".rename")) return;
  // An answer that grows changes nothing here: an entry that is made anew would lose its click.
  const state = JSON.stringify([heads.map((each) => [each.id, each.title, each.place, tellTime(each)]), shown.id, words]);
  if (state === listState) return;
  listState = state;
  const { act } = document.activeElement.dataset, { id } = document.activeElement.closest("#conversations li")?.dataset ?? {};
  byId("conversations").replaceChildren(...heads.map((each) => makeEntry(each, words)));
  if (id) (findEntry(id)?.querySelector(`[data-act="${act}"]`) ?? byId("search")).focus();
  const none = words ? "No conversation has these words." : "No conversation is kept yet.";
  setText(byId("list-count"), heads.length ? (words ? `${heads.length} found` : "") : none);
  byId("export-all").disabled = byId("forget-all").disabled = !heads.length && !words;
}

function findEntry(id) { return byId("conversations").querySelector(`[data-id="${CSS.escape(id)}"]`); }

function tellTime({ id, changed }) {
  if (alive.get(id)?.run) return "an answer is being written";
  return readTime(changed) ? written.format(changed) : "";
}

function makeEntry(head, words) {
  const { id, title, place } = head;
  const link = make("a", { href: findAddress(id) }, make("span", { className: "title" }, title),
    make("span", { className: "when number" }, tellTime(head)));
  link.dataset.act = "open";
  if (id === shown.id) link.ariaCurrent = "true";
  link.addEventListener("click", () => {
    closeDrawer();
    // On a phone, the field would bring up the keyboard.
    if (matchMedia("(hover: hover)").matches) byId("prompt").focus();
  });
  const summary = make("summary", { "aria-label": `More for ${title}` }, "⋯");
  summary.dataset.act = "more";
  const menu = make("details", { className: "menu", open: openMenu === id }, summary, make("div", { className: "actions" },
    makeAct("rename", "Rename", () => rename(id, title)),
    makeAct("markdown", "Markdown", () => exportMarkdown(id)),
    makeAct("json", "JSON", () => exportJson([id])),
    makeAct("delete", "Delete", () => deleteConversation(id))));
  menu.addEventListener("toggle", () => {
    if (menu.open) openMenu = id; else if (openMenu === id) openMenu = "";
  });
  const item = make("li", {}, link, menu);
  item.dataset.id = id;
  if (place) link.append(make("span", { className: "place" }, ...markWords(place, words)));
  return item;
}

function markWords(text, words) {
  const at = text.toLowerCase().indexOf(words.toLowerCase());
  return at < 0 ? [text] : [text.slice(0, at), make("mark", {}, text.slice(at, at + words.length)), text.slice(at + words.length)];
}

function rename(id, title) {
  const item = findEntry(id);
  const field = make("input", { value: title, "aria-label": "Title", required: true, maxLength: MAX_NAME });
  const form = make("form", { className: "rename" }, field, make("button", { type: "submit", className: "main" }, "Save"));
  const end = () => { form.remove(); listState = ""; refreshList().then(() => findEntry(id)?.querySelector("summary").focus()); };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = field.value.trim();
    if (name) await useStore((store) => store.rename(id, name)).catch(() => {});
    if (name && shown.id === id) { shown.title = name; showTitle(); }
    tellTabs(id);
    end();
  });
  // The list stays open.
  field.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.preventDefault(); end(); } });
  item.replaceChildren(form);
  field.select();
}

async function deleteConversation(id) {
  const found = await useStore((store) => store.load(id));
  const mine = alive.get(id) ?? (shown.id === id ? shown : null);
  if (mine) leave(mine);
  await useStore((store) => store.remove(id));
  tellTabs(id);
  await refreshList();
  noteList("The conversation is deleted.", async () => {
    if (found) await useStore((store) => store.save(found.head, found.messages, [], true));
    for (const each of found?.waiting ?? []) await useStore((store) => store.addWaiting(id, each));
    noteList("It is back.");
    listState = "";
    await refreshList();
    byId("search").focus();
  });
}

// Says what has happened, and may offer to undo it.
function noteList(text, undo = null) {
  const [words, button] = byId("list-note").children;
  setText(words, text);
  byId("list-note").hidden = !text;
  button.hidden = !undo;
  button.onclick = undo;
  if (undo) button.focus();
}

let searchTimer = 0;
byId("search").addEventListener("input", () => { clearTimeout(searchTimer); searchTimer = setTimeout(refreshList, 150); });
byId("to-list").addEventListener("click", () => {
  if (list.open) { closeList(); return; }
  openList();
  byId("search").focus();
});
byId("list-new").addEventListener("click", () => { closeDrawer(); beginNew(); });
byId("list-close").addEventListener("click", closeList);
// A click beside it closes it.
list.addEventListener("click", (event) => { if (event.target === list) closeDrawer(); });

// ---- Forget all -----------------------------------------------------------------------

byId("forget-all").addEventListener("click", () => byId("forget-dialog").showModal());
byId("forget-cancel").addEventListener("click", () => byId("forget-dialog").close());
byId("forget-dialog").querySelector("form").addEventListener("submit", async () => {
  for (const each of [...alive.values(), shown]) leave(each);
  await useStore((store) => store.clear()).catch((error) => noteList(`They could not be deleted: ${explainError(error)}`));
  tellTabs(null);
  listState = "";
  await refreshList();
  noteList("All conversations are forgotten.");
  byId("search").focus();
});
