"use strict";

// An answer, from its request to its end.

// Where the model has no room for the limit, the answer has what is left.
async function openAnswer(id, options) {
  const body = {
    model: server.model.id, messages: listMessages(), ...readSettings(), ...options, stream: true,
    stream_options: { include_usage: true }, return_metrics: true,
  };
  const send = () => ask("v1/chat/completions", { method: "POST", signal: running.signal, headers: { "X-Request-Id": id }, body });
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof Refused && /maximum context length/.test(error.message))) throw error;
    delete body.max_tokens;
    return send();
  }
}

async function answer() {
  await write(new AnswerView(), {});
}

async function goOn(view) {
  if (running) return;
  view.reopen();
  byId("prompt").focus();
  await write(view, { continue_final_message: true, add_generation_prompt: false });
}

async function write(view, options) {
  for (const each of document.querySelectorAll(".again")) each.remove();
  const last = turns.at(-1);
  running = new AbortController();
  setRunning(true);
  try {
    const response = await openAnswer(view.id, options);
    for await (const event of readEvents(response)) view.take(event);
    view.finish(view.isWhole ? "" : "The answer was cut off.");
  } catch (error) {
    if (error.name === "AbortError") view.finish("Stopped.");
    else if (error instanceof Refused) view.finish(error.message, true);
    else { noteDown(); view.finish("The connection was lost.", true); }
  }
  // A new chat may have begun, which has no place for this answer.
  if (turns.at(-1) === last && last.role === "assistant") last.text = view.content;
  else if (view.content && turns.at(-1) === last) turns.push({ role: "assistant", text: view.content, node: view.node });
  running = null;
  setRunning(false);
}

// An answer while it comes. Its text is shown at most once a frame.
class AnswerView {
  constructor() {
    const { node, text } = addMessage("assistant", server.model.id);
    Object.assign(this, { node, content: "", reasoning: "" });
    this.place = text;
    this.markdown = new Markdown(text);
    this.open();
    log.scrollTop = log.scrollHeight;
  }

  // Begins a request for the answer, or for the rest of it.
  open() {
    Object.assign(this, { isWhole: false, usage: null, times: null, reason: null, frame: 0, restsUntil: 0 });
    this.id = `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`;
    ownIds.add(this.id);
    this.node.classList.add("busy");
  }

  reopen() {
    for (const each of this.node.querySelectorAll(".note, .actions")) each.remove();
    this.open();
  }

  take(event) {
    if (event === null) { this.isWhole = true; return; }
    if (event.error) throw new Refused(event.error.code, event.error.message);
    this.usage = event.usage || this.usage;
    this.times = event.metrics || this.times;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason || this.reason;
    this.content += choice.delta.content || "";
    this.reasoning += choice.delta.reasoning || "";
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  // A long block is built again whenever it grows. So that the page stays quick, it rests for
  // longer than that took.
  draw() {
    const began = performance.now();
    if (began < this.restsUntil) { this.frame = requestAnimationFrame(() => this.draw()); return; }
    this.frame = 0;
    this.show();
    const now = performance.now();
    this.restsUntil = now + 3 * (now - began);
  }

  show() {
    keepAtEnd(() => {
      if (this.reasoning && !this.thoughts) {
        const inside = make("div", { className: "text" });
        this.place.before(make("details", { className: "reasoning" }, make("summary", {}, "Reasoning"), inside));
        this.thoughts = new Markdown(inside);
      }
      this.thoughts?.show(this.reasoning);
      this.markdown.show(this.content);
    });
  }

  finish(note, isWrong = false) {
    cancelAnimationFrame(this.frame);
    this.show();
    this.node.classList.remove("busy");
    const notes = [note, this.explainEnd(), isWrong ? "" : this.countTokens()].filter(Boolean).join(" ");
    const buttons = this.content ? [makeCopy(() => this.content)] : [];
    if (this.content && this.reason in CONTINUED) buttons.push(makeAgain("Continue", () => goOn(this)));
    buttons.push(makeAgain("Regenerate", regenerate));
    keepAtEnd(() => {
      if (notes) this.node.append(make("p", { className: isWrong ? "note wrong" : "note number" }, notes));
      this.node.append(make("div", { className: "actions" }, ...buttons));
    });
    speak(note || "The answer is complete.");
  }

  explainEnd() {
    if (this.reason === "length" && !this.content) return "The limit of tokens came before the answer. Below Settings you can raise it.";
    return CONTINUED[this.reason] ?? (this.reason === "deadline" ? "The answer reached its time limit." : "");
  }

  countTokens() {
    if (!this.usage) return "";
    const parts = [`${this.usage.completion_tokens} tokens`];
    const speed = this.times?.tokens_per_second, first = this.times?.time_to_first_token_ms;
    if (speed) parts.push(`${speed.toFixed(speed < 10 ? 1 : 0)} a second`);
    if (first != null) parts.push(`first after ${formatSeconds(first / 1000)}`);
    return `${parts.join(", ")}.`;
  }
}

// The reasons for which an answer ends before it is complete, and can go on.
const CONTINUED = { length: "The answer reached its limit of tokens.", repetition: "The answer repeated itself." };

function makeAgain(name, act) {
  const button = make("button", { type: "button", className: "quiet again" }, name);
  button.addEventListener("click", act);
  return button;
}

function regenerate() {
  if (running) return;
  if (turns.at(-1)?.role === "assistant") turns.pop();
  byId("messages").lastElementChild.remove();
  byId("prompt").focus();
  answer();
}
