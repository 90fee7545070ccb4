"use strict";

// Conversations in the browser's database, or in this tab alone where there is none.

const TABLES = ["conversations", "messages", "images"];
// A proxy may have several servers at one origin.
const DATABASE = `trioserve ${ROOT}`;

function wait(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

class Table {
  constructor(store) { this.store = store; }
  get(key) { return wait(this.store.get(key)); }
  listAll() { return wait(this.store.getAll()); }
  list(conversation) { return wait(this.store.index("conversation").getAll(conversation)); }
  put(row) { return wait(this.store.put(row)); }
  delete(key) { return wait(this.store.delete(key)); }
  clear() { return wait(this.store.clear()); }
}

class MemoryTable {
  constructor() { this.rows = new Map(); }
  async get(key) { return structuredClone(this.rows.get(key)); }
  async listAll() { return structuredClone([...this.rows.values()]); }
  async list(conversation) { return (await this.listAll()).filter((each) => each.conversation === conversation); }
  async put(row) { this.rows.set(row.id, structuredClone(row)); }
  async delete(key) { this.rows.delete(key); }
  async clear() { this.rows.clear(); }
}

// Each message is a row, so tabs that write to one conversation do not overwrite each other.
// Images are apart, so that a search does not read them.
class Store {
  constructor(database) {
    this.database = database;
    this.memory = database ? null : Object.fromEntries(TABLES.map((each) => [each, new MemoryTable()]));
  }

  // Runs a function with the three tables, in one transaction.
  async run(mode, act) {
    if (this.memory) return act(this.memory);
    const transaction = this.database.transaction(TABLES, mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
    const tables = Object.fromEntries(TABLES.map((each) => [each, new Table(transaction.objectStore(each))]));
    const [result] = await Promise.all([act(tables), done]);
    return result;
  }

  // Returns false if another tab has deleted the conversation.
  save(head, messages, removed, isNew) {
    return this.run("readwrite", async (tables) => {
      const stored = await tables.conversations.get(head.id);
      if (!stored && !isNew) return false;
      const chosen = { ...stored?.chosen, ...head.chosen };
      for (const id of removed) delete chosen[id];
      await tables.conversations.put({ ...head, title: stored?.title ?? head.title, chosen });
      for (const { images, ...message } of messages) {
        await tables.messages.put(message);
        if (images?.length) await tables.images.put({ id: message.id, conversation: head.id, images });
      }
      for (const id of removed) { await tables.messages.delete(id); await tables.images.delete(id); }
      return true;
    });
  }

  load(id) {
    return this.run("readonly", async (tables) => {
      const head = await tables.conversations.get(id);
      if (!head) return null;
      const messages = await tables.messages.list(id);
      const beside = await tables.images.list(id), images = new Map(beside.map((each) => [each.id, each.images]));
      const waiting = beside.flatMap((each) => each.waiting ?? []).sort((a, b) => a.created - b.created);
      return { head, waiting, messages: messages.map((each) => (images.has(each.id) ? { ...each, images: images.get(each.id) } : each)) };
    });
  }

  // Keeps a question that waits, beside the images, because it may have some. Returns whether it
  // is kept: the tab has it in any case.
  addWaiting(conversation, question) {
    return this.run("readwrite", async ({ conversations, images }) => {
      if (this.memory || !await conversations.get(conversation)) return false;
      await images.put({ id: question.id, conversation, waiting: question });
      return true;
    });
  }

  // Returns false if another tab has asked the question or removed it.
  hasWaiting(id) { return this.run("readonly", async ({ images }) => Boolean(await images.get(id))); }

  removeWaiting(id) { return this.run("readwrite", ({ images }) => images.delete(id)); }

  // Lists the conversations whose title or texts have some words, the latest first, each with
  // the place where they are.
  list(words) {
    const find = (text) => text.toLowerCase().indexOf(words.toLowerCase());
    return this.run("readonly", async (tables) => {
      const heads = (await tables.conversations.listAll()).sort((a, b) => b.changed - a.changed);
      if (!words) return heads;
      const found = new Map();
      for (const { conversation, text } of await tables.messages.listAll()) {
        const at = find(text);
        if (at >= 0 && !found.has(conversation)) found.set(conversation, text.slice(Math.max(0, at - 30), at + words.length + 60));
      }
      return heads.filter(({ id, title }) => found.has(id) || find(title) >= 0)
        .map((each) => ({ ...each, place: found.get(each.id) ?? "" }));
    });
  }

  rename(id, title) {
    return this.run("readwrite", async ({ conversations }) => {
      const head = await conversations.get(id);
      if (head) await conversations.put({ ...head, title });
    });
  }

  remove(id) {
    return this.run("readwrite", async ({ conversations, messages, images }) => {
      await conversations.delete(id);
      for (const table of [messages, images]) {
        for (const each of await table.list(id)) await table.delete(each.id);
      }
    });
  }

  clear() {
    return this.run("readwrite", async (tables) => { for (const name of TABLES) await tables[name].clear(); });
  }
}

async function openStore() {
  try {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      const [conversations, ...others] = TABLES.map((name) => request.result.createObjectStore(name, { keyPath: "id" }));
      for (const each of others) each.createIndex("conversation", "conversation");
    };
    const database = await wait(request);
    database.onversionchange = () => database.close();
    return new Store(database);
  } catch {
    // Some browsers have no database in private windows.
    noteStorage("This browser keeps nothing here: conversations are gone with this tab.");
    return new Store(null);
  }
}

function noteStorage(text) {
  for (const each of document.querySelectorAll(".storage-note")) { setText(each, text); each.hidden = !text; }
  setText(byId("keeps"), text ? "" : " Conversations stay in this browser.");
}

const opening = openStore();
let saving = Promise.resolve();

// Reads and writes come one behind the other, so that each sees those before it.
function useStore(act) {
  const done = saving.then(async () => act(await opening));
  saving = done.catch(() => {});
  return done;
}

// The tabs tell each other what they have written: the conversation, or null for all.
const tabs = new BroadcastChannel(DATABASE);
tabs.addEventListener("message", ({ data }) => noteOtherTab(data));

function tellTabs(id) { tabs.postMessage(id); }

function explainError(error) {
  return error?.name === "QuotaExceededError" ? "there is no room left." : error?.message || String(error);
}

// Keeps what has changed in a conversation.
async function keep(conversation, messages, removed = []) {
  if (conversation.isGone) return;
  conversation.changed = Date.now();
  conversation.numWritten++;
  const { id, title, created, changed, chosen } = conversation;
  const head = { id, title, created, changed, chosen: { ...chosen } };
  const isNew = !conversation.isKept;
  conversation.isKept = true;
  const written = isNew || conversation.lacksImages ? [...conversation.messages.values()] : messages;
  await useStore(async (store) => {
    if (conversation.hasNewTitle) {
      conversation.hasNewTitle = false;
      await store.rename(id, title);
    }
    try {
      if (!await store.save(head, written, removed, isNew)) return;
      conversation.lacksImages = false;
      // The note about a browser without a database stays.
      if (store.database) noteStorage("");
    } catch (error) {
      if (error?.name !== "QuotaExceededError") throw error;
      await store.save(head, written.map((each) => ({ ...each, images: [] })), removed, isNew);
      conversation.lacksImages = true;
      noteStorage("This browser has no room for the images, which are gone with this tab.");
    }
  }).catch((error) => {
    conversation.isKept = false;
    noteStorage(`This browser does not keep the conversation: ${explainError(error)}`);
  });
  tellTabs(id);
  refreshList();
  keepWaiting(conversation);
}

// Keeps the questions that wait, so that they are there after F5.
async function keepWaiting(conversation) {
  const fresh = conversation.queue.filter((each) => !each.isKept);
  if (!fresh.length || conversation.isGone) return;
  conversation.numWritten++;
  for (const each of fresh) {
    // What asks for it comes behind this.
    each.isKept = true;
    each.isKept = await useStore((store) => store.addWaiting(conversation.id, each)).catch(() => false);
  }
  tellTabs(conversation.id);
}

function removeWaiting(conversation, { id, isKept }) {
  if (!isKept) return;
  conversation.numWritten++;
  useStore((store) => store.removeWaiting(id)).then(() => tellTabs(conversation.id), () => {});
}
