"use strict";

// A message with its branches, notes and buttons.

// The reasons for which an answer ends before it is complete, and can go on.
const CONTINUED = {
  // A file may have any word as reason, also that of a method.
  __proto__: null,
  length: "The answer reached its limit of tokens.",
  repetition: "The answer repeated itself.",
  left: "The answer is not complete.",
  edited: "The answer was edited.",
};

class MessageView {
  constructor(conversation, message) {
    Object.assign(this, { conversation, message, state: "" });
    const isQuestion = message.role === "user";
    this.branches = make("div", { className: "branches", "aria-live": "off" });
    this.mark = make("span", { className: "mark", hidden: true }, "not answered");
    this.place = make("div", { className: "text" });
    this.below = make("div");
    const name = make("h3", { className: "who" }, isQuestion ? "You" : message.model || "Answer");
    this.node = make("article", { className: `message ${message.role}`, "aria-label": name.textContent }, make("div", { className: "head" }, name, this.mark, this.branches), this.place, this.below);
    if (message.images?.length) this.below.before(make("ul", { className: "pictures" }, ...message.images.map((each) => make("li", {}, makePicture(each)))));
    if (!isQuestion) this.markdown = new Markdown(this.place);
    this.show();
  }

  // Shows the text, which may have grown.
  show() {
    const { text, reasoning } = this.message;
    if (!this.markdown) { setText(this.place, text); return; }
    if (reasoning && !this.thoughts) {
      const inside = make("div", { className: "text" });
      this.place.before(make("details", { className: "reasoning" }, make("summary", {}, "Reasoning"), inside));
      this.thoughts = new Markdown(inside);
    }
    this.thoughts?.show(reasoning);
    this.markdown.show(text);
  }

  // Shows what is around the text, before the `next` message. The button with the focus keeps it.
  update(siblings, next) {
    const { message, conversation: { run } } = this, isLast = !next;
    // It has a failure, its answer was deleted, or the page was left before its answer began.
    const isOpen = this.isOpen = message.role === "user" && next?.role !== "assistant";
    const isBusy = run?.message === message;
    const place = siblings.indexOf(message);
    const { note, failure, reason, isWrong } = message;
    const state = JSON.stringify([place, siblings.length, isLast, isOpen, !run, isBusy, note, failure, reason, isWrong]);
    if (state === this.state) return;
    this.state = state;
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.act : null;
    this.node.classList.toggle("busy", isBusy);
    this.node.classList.toggle("refused", isOpen);
    this.node.classList.toggle("last", isLast);
    this.mark.hidden = !isOpen;
    this.branches.replaceChildren(...siblings.length > 1 && !run ? this.makeBranches(siblings, place) : []);
    this.below.replaceChildren(...isBusy ? [] : [...this.makeNotes(), make("div", { className: "actions", "aria-live": "off" }, ...this.makeActions(isLast))]);
    if (focused) this.focus(focused);
  }

  focus(act) { this.node.querySelector(`[data-act="${act}"]`)?.focus(); }

  makeBranches(siblings, place) {
    const step = (act, name, sign, other) => {
      const button = makeAct(act, sign, () => chooseBranch(other, act));
      button.ariaLabel = name;
      button.disabled = !other;
      return button;
    };
    return [
      step("before", "Earlier branch", "‹", siblings[place - 1]),
      make("span", { className: "number", "aria-label": `Branch ${place + 1} of ${siblings.length}`, role: "img" }, `${place + 1}/${siblings.length}`),
      step("after", "Later branch", "›", siblings[place + 1]),
    ];
  }

  makeNotes() {
    const { note, failure, reason, isWrong } = this.message;
    const words = failure ? [make("p", { className: "note wrong" }, failure)] : [];
    if (this.isOpen) return [...words, make("p", { className: "note" }, "The next question is sent without this one.")];
    const text = note ?? CONTINUED[reason];
    return text ? [make("p", { className: isWrong ? "note wrong" : "note number" }, text)] : [];
  }

  makeActions(isLast) {
    const { conversation, message } = this;
    const buttons = message.text ? [makeCopy(() => message.text)] : [];
    if (conversation.run) return buttons;
    const isQuestion = message.role === "user";
    if (isLast && message.text && message.reason in CONTINUED) buttons.push(makeAct("continue", "Continue", () => goOn(conversation, message)));
    const question = conversation.messages.get(message.parent);
    if (!isQuestion && question) buttons.push(makeAct("again", "Regenerate", () => askAgain(conversation, question)));
    if (isLast && isQuestion) buttons.push(makeAct("again", "Ask again", () => askAgain(conversation, message)));
    buttons.push(makeAct("edit", "Edit", () => this.edit()), makeAct("delete", "Delete", () => deleteMessage(message)));
    return buttons;
  }

  // A question that is asked again, and an answer that is kept twice, become a branch.
  edit() {
    const { message, conversation } = this, isQuestion = message.role === "user";
    const area = make("textarea", { value: message.text, "aria-label": isQuestion ? "Edit the question" : "Edit the answer" });
    const end = (act) => { form.replaceWith(this.place); this.below.hidden = false; this.editor = null; this.focus(act); };
    const save = () => {
      end("");
      changeText(message, area.value.trim());
      findView(conversation, message).focus("edit");
    };
    const branch = () => {
      if (isQuestion && !canAsk("Your text stays here.")) return;
      end("");
      addBranch(conversation, message, area.value.trim());
    };
    const main = make("button", { type: "submit", className: "main" }, isQuestion ? "Ask again" : "Save");
    const other = make("button", { type: "button" }, isQuestion ? "Save" : "Save as a branch");
    const cancel = make("button", { type: "button" }, "Cancel");
    const form = make("form", { className: "editor" }, area, make("div", { className: "row" }, main, other, cancel));
    const isEmpty = () => !area.value.trim() && !message.images?.length;
    const check = () => { main.disabled = other.disabled = isEmpty(); fitHeight(area); };
    form.addEventListener("submit", (event) => { event.preventDefault(); if (isQuestion) branch(); else save(); });
    other.addEventListener("click", isQuestion ? save : branch);
    cancel.addEventListener("click", () => end("edit"));
    area.addEventListener("input", check);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end("edit");
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isEmpty()) form.requestSubmit();
    });
    this.editor = form;
    this.place.replaceWith(form);
    this.below.hidden = true;
    check();
    area.focus();
  }
}

function makeAct(act, name, then) {
  const button = make("button", { type: "button", className: "quiet" }, name);
  button.dataset.act = act;
  button.addEventListener("click", then);
  return button;
}
