"use strict";

// An answer, from its request to its end.

const ownIds = new Set();

// Where the model has no room for the limit, the answer has what is left.
async function openAnswer(run, options) {
  const path = run.conversation.listPath().map(({ message }) => message);
  const messages = listMessages(path.slice(0, path.findIndex((each) => each.id === run.message.id) + (run.message.text ? 1 : 0)));
  const body = {
    model: server.model.id, messages, ...readSettings(), ...options, stream: true,
    stream_options: { include_usage: true }, return_metrics: true,
  };
  const send = () => ask("v1/chat/completions", { method: "POST", signal: run.controller.signal, headers: { "X-Request-Id": run.id }, body });
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof Refused && /maximum context length/.test(error.message))) throw error;
    delete body.max_tokens;
    return send();
  }
}

async function answer(conversation, question) {
  if (conversation.run) return;
  const before = conversation.chosen[question.id];
  if (question.failure) { delete question.failure; keep(conversation, [question]); }
  const message = conversation.add({ role: "assistant", parent: question.id, model: server.model.id });
  const run = new Answer(conversation, message);
  await write(run, {});
  if (message.text || message.reasoning || message.note) { goNext(conversation); return; }
  // Without an answer, the question is marked; an earlier branch has one.
  conversation.remove(message);
  if (before) conversation.chosen[question.id] = before;
  const failure = run.failure || "The answer is empty.";
  if (before && conversation === shown) showHint(failure); else if (!before) question.failure = failure;
  keep(conversation, [question], [message.id]);
  if (conversation === shown) keepAtEnd(showPath);
  goNext(conversation);
}

function goNext(conversation) {
  if (conversation.isStale) noteOtherTab(conversation.id);
  sendNext(conversation);
}

async function goOn(conversation, message) {
  byId("prompt").focus();
  if (conversation.run || !canAsk()) return;
  if (byId("schema").value.trim()) {
    showHint("With a JSON schema an answer cannot go on: the JSON would begin again in its middle. Empty that setting, or regenerate the answer with more tokens.");
    return;
  }
  await write(new Answer(conversation, message), { continue_final_message: true, add_generation_prompt: false });
  goNext(conversation);
}

async function write(run, options) {
  const { conversation } = run;
  conversation.run = run;
  noteAlive(conversation);
  run.begin();
  try {
    const response = await openAnswer(run, options);
    for await (const event of readEvents(response)) run.take(event);
    run.finish(run.isWhole ? "" : "The answer was cut off.", !run.isWhole);
  } catch (error) {
    if (error.name === "AbortError") run.finish("Stopped.");
    else if (error instanceof Refused) {
      run.finish(error.status < 500 ? `Refused: ${error.message}` : `The server failed: ${error.message}`, true);
      if (conversation === shown) noteRefusedSetting(error);
    } else if (error instanceof WrongSetting) {
      run.finish(error.message, true);
      if (conversation === shown) showSetting(error.id);
    } else { noteDown(); run.finish("The connection was lost.", true); }
  }
}

// The writing of an answer. Its text is shown at most once a frame, and kept once a second.
class Answer {
  constructor(conversation, message) {
    Object.assign(this, { conversation, message, isWhole: false, usage: null, times: null, failure: "", frame: 0, restsUntil: 0, keptAt: -Infinity });
    this.id = `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`;
    this.controller = new AbortController();
    ownIds.add(this.id);
  }

  begin() {
    const { message, conversation } = this;
    // The reason, if the page is left before the end.
    Object.assign(message, { reason: "left", note: undefined, isWrong: false });
    if (conversation !== shown) return;
    showUndo("");
    showHint("");
    showPath();
    goToEnd();
  }

  take(event) {
    if (event === null) { this.isWhole = true; return; }
    if (event.error) throw new Refused(event.error.code ?? 500, readMessage(event.error) || "It does not say why.");
    this.usage = event.usage || this.usage;
    this.times = event.metrics || this.times;
    const choice = event.choices?.[0];
    if (!choice) return;
    const { message } = this;
    message.reason = choice.finish_reason || message.reason;
    const { content, reasoning } = choice.delta ?? {};
    message.text += content || "";
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
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
    if (now - this.keptAt > 1000) { this.keptAt = now; this.keep(); }
  }

  show() { keepAtEnd(() => findView(this.conversation, this.message).show()); }

  keep() { keep(this.conversation, [this.message]); }

  finish(note, isWrong = false) {
    cancelAnimationFrame(this.frame);
    const { conversation, message } = this;
    this.show();
    conversation.run = null;
    if (note) conversation.isHeld = conversation.queue.length > 0;
    noteAlive(conversation);
    if (message.text || message.reasoning || !note) {
      message.note = [note, this.explainEnd(), isWrong ? "" : this.countTokens()].filter(Boolean).join(" ");
      message.isWrong = isWrong;
      this.keep();
    }
    this.failure = note;
    if (conversation !== shown) return;
    keepAtEnd(showPath);
    showQueue();
    speak(note || "The answer is complete.");
  }

  explainEnd() {
    const { reason, text } = this.message;
    if (reason === "length" && !text) return "The limit of tokens came before the answer. Below Settings you can raise it.";
    if (reason === "deadline") return "The answer reached its time limit.";
    return reason === "left" ? "" : CONTINUED[reason] ?? "";
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

function stopAnswer() { shown.run?.controller.abort(); }

byId("stop").addEventListener("click", stopAnswer);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog:modal")) stopAnswer();
});
