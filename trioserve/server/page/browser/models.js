"use strict";

// The models of the server, their adapters and their states.

// The last choice of this tab is shown, if it is there.
function showModels(models) {
  const choice = byId("models"), ids = models.map(({ id }) => id);
  const wanted = tabStorage.getItem(CHOSEN);
  const model = models.find(({ id }) => id === wanted) ?? models[0];
  if (ids.join("\n") !== [...choice.options].map(({ value }) => value).join("\n")) {
    choice.replaceChildren(...ids.map((id) => new Option(id, id)));
  }
  models.forEach(({ id, status }, i) => {
    setText(choice.options[i], status && status.value !== "loaded" ? `${id} (${status.value})` : id);
  });
  choice.value = model.id;
  choice.hidden = ids.length < 2;
  byId("model").hidden = !choice.hidden;
  choice.onchange = () => {
    tabStorage.setItem(CHOSEN, choice.value);
    showModel(models.find(({ id }) => id === choice.value));
  };
  showModel(model);
  showStates(models);
  noteLoad(models);
}

const LOADING = "The model is being loaded. The answer begins when it is there.";

function noteLoad(models) {
  const asked = shown.run?.message.model, isLoading = models.some(({ id, status }) => id === asked && status?.value === "loading");
  if (isLoading) showHint(LOADING); else if (byId("hint").textContent === LOADING) showHint("");
}

// Adapters may have come or gone.
byId("models").addEventListener("focus", connect);

// Of several models, each has a state, which changes by itself.
function haveStates() { return !byId("states").hidden; }

function showStates(models) {
  const own = models.filter(({ parent, status }) => status && !parent);
  byId("states").hidden = own.length === 0;
  const text = JSON.stringify(own), list = byId("states").querySelector("ul");
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...own.map(({ id, status }) => {
    const state = make("span", { className: "state" }, status.value);
    state.dataset.state = status.value;
    const adapters = models.filter(({ parent }) => parent === id).map((each) => each.id);
    const facts = [
      describeMemory(status),
      countRequests(status.num_requests, "uses it", "use it"), countRequests(status.num_waiting, "waits", "wait"),
      adapters.length > 4 ? `${adapters.length} adapters` : adapters.length && `adapters: ${adapters.join(", ")}`,
    ];
    return make("li", {}, make("b", {}, id), state,
      make("span", { className: "facts-line number muted" }, facts.filter(Boolean).join("; ")),
      ...(status.reason ? [make("span", { className: "facts-line wrong" }, status.reason)] : []));
  }));
}

function countRequests(number, one, several) {
  return number ? `${number} ${number === 1 ? `request ${one}` : `requests ${several}`}` : "";
}

function describeMemory({ value, memory_bytes: bytes }) {
  if (!bytes || value === "failed") return "";
  const size = bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  return value === "unloaded" ? `needs ${size}` : size;
}
