"use strict";

// Conversations as files. A file from elsewhere may have anything in it.

const FORMAT = "trioserve-conversations";

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function nameFile(title, end) { return `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation"}.${end}`; }

async function exportJson(ids) {
  const conversations = [];
  for (const id of ids) {
    const found = await useStore((store) => store.load(id));
    if (found) conversations.push({ ...found.head, messages: found.messages });
  }
  if (!conversations.length) return;
  const name = ids.length === 1 ? nameFile(conversations[0].title, "json") : `conversations-${new Date().toISOString().slice(0, 10)}.json`;
  download(name, "application/json", JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1));
}

async function exportMarkdown(id) {
  const conversation = await load(id);
  if (!conversation) return;
  const parts = conversation.listPath().map(({ message: { role, model, text, images = [] } }) => [
    `## ${role === "user" ? "You" : model ? `Answer of ${model}` : "Answer"}`, ...images.map(({ name, url }) => `![${name.replace(/[[\]\n]/g, " ")}](${url})`), text,
  ].join("\n\n"));
  download(nameFile(conversation.title, "md"), "text/markdown", `${[`# ${conversation.title}`, ...parts].join("\n\n")}\n`);
}

byId("export-all").addEventListener("click", async () => {
  exportJson((await useStore((store) => store.list(""))).map(({ id }) => id));
});

const isText = (value) => typeof value === "string";

// Returns 0 for what is no date, because a Date ends there.
const readTime = (value) => (value > 0 && value <= 8.64e15 ? Math.floor(value) : 0);

// An id is a part of the address, which encodes other letters.
const cleanId = (id) => id.replace(/[^\w-]/g, (each) => `-${each.charCodeAt(0).toString(16)}`) || makeId();

// A browser draws the parts of an SVG as often as it says, which may be for ever.
const isPicture = (image) => isText(image?.name) && isText(image.url) && /^data:image\/(?:png|jpeg|gif|webp|avif|bmp);base64,/.test(image.url);

// Only known fields of known types are taken.
function readKept(each, conversation) {
  if (!isText(each?.id) || !isText(each.parent) || !["user", "assistant"].includes(each.role) || !isText(each.text)) {
    throw new Error("a message has no id, parent, role or text");
  }
  const message = { id: each.id, conversation, parent: each.parent, role: each.role, text: each.text, created: readTime(each.created) };
  for (const name of ["failure", "model", "reasoning", "reason", "note"]) if (isText(each[name])) message[name] = each[name];
  if (each.isWrong === true) message.isWrong = true;
  const images = Array.isArray(each.images) ? each.images.filter(isPicture) : [];
  if (images.length) message.images = images.map(({ name, url }) => ({ name, url }));
  return message;
}

// A message leads to a first one, or to one that another tab has deleted.
function checkTree(messages) {
  const ids = new Set(messages.map(({ id }) => id)), groups = Map.groupBy(messages, ({ parent }) => parent);
  if (ids.size < messages.length || ids.has("")) throw new Error("a message has no id of its own");
  const reached = messages.filter(({ parent }) => !ids.has(parent));
  for (const { id } of reached) for (const each of groups.get(id) ?? []) reached.push(each);
  if (reached.length < messages.length || !groups.has("")) throw new Error("its messages do not lead to a first one");
}

function readConversation(each) {
  if (!isText(each?.id) || !isText(each.title) || !Array.isArray(each.messages)) throw new Error("a conversation has no id, title or messages");
  const id = cleanId(each.id), title = each.title.trim().slice(0, MAX_NAME) || "Conversation";
  const messages = each.messages.map((message) => readKept(message, id));
  checkTree(messages);
  const chosen = Object.fromEntries(Object.entries(each.chosen ?? {}).filter(([, value]) => isText(value)));
  return { id, title, created: readTime(each.created), changed: readTime(each.changed), chosen, messages };
}

// Gives the messages names of their own, because others here may have theirs.
function renameMessages({ messages, chosen, ...head }, id) {
  const names = new Map([["", ""], ...messages.map((each) => [each.id, makeId()])]);
  return {
    ...head, id,
    chosen: Object.fromEntries(Object.entries(chosen).flatMap(([from, to]) => (names.has(from) && names.has(to) ? [[names.get(from), names.get(to)]] : []))),
    messages: messages.map((each) => ({ ...each, id: names.get(each.id), conversation: id, parent: names.get(each.parent) ?? makeId() })),
  };
}

// Reads what exportMarkdown writes: one branch. Other headings are a part of a text.
function readMarkdown(text, name, changed) {
  const [begin, ...parts] = text.replaceAll("\r\n", "\n").split(/^## (?=(?:You|Answer(?: of .+)?)$)/m);
  const messages = parts.map((part, i) => {
    const [head] = part.split("\n", 1), isQuestion = head === "You", images = [];
    let rest = part.slice(head.length).trim();
    for (let found; isQuestion && (found = /^!\[(.*)\]\((data:[^)]+)\)\s*/.exec(rest)); rest = rest.slice(found[0].length)) {
      images.push({ name: found[1], url: found[2] });
    }
    return { id: `${i}`, parent: i ? `${i - 1}` : "", role: isQuestion ? "user" : "assistant", model: head.slice(10), text: rest, created: changed + i, images };
  });
  return { format: FORMAT, conversations: [{ id: name, title: /^# (.*)/.exec(begin)?.[1] ?? name, created: changed, changed, messages }] };
}

// Returns the words for what has become of it.
async function importFile(file) {
  let read;
  try {
    const text = await file.text();
    const found = /\.md$/i.test(file.name) ? readMarkdown(text, file.name, file.lastModified) : JSON.parse(text);
    if (found?.format !== FORMAT || !Array.isArray(found.conversations)) throw new Error("it was not written by this page");
    read = found.conversations.map(readConversation);
  } catch (error) {
    return `${file.name} has no conversations that can be read: ${error.message}.`;
  }
  try {
    let numNew = 0;
    for (const each of read) numNew += await useStore((store) => importOne(store, each));
    return `${file.name}: ${numNew} of ${read.length} conversations are new here.`;
  } catch (error) {
    return `${file.name}: the browser could not keep all: ${explainError(error)}`;
  }
}

// What is here already is left alone. Of a conversation that has gone on since, the file has
// another state, which is kept under an id of its own, once.
async function importOne(store, conversation) {
  let { id, changed } = conversation;
  const here = await store.load(id);
  if (here?.head.changed === changed) return 0;
  if (here) id += `-${changed}`;
  if (here && await store.load(id)) return 0;
  const { messages, ...head } = renameMessages(conversation, id);
  await store.save(head, messages, [], true);
  return 1;
}

byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async () => {
  const notes = [];
  for (const file of [...byId("import-file").files]) notes.push(await importFile(file));
  byId("import-file").value = "";
  noteList(notes.join(" "));
  tellTabs("");
  listState = "";
  refreshList();
});
