"use strict";

// Polling.

const get = (path) => ask(path, { signal: AbortSignal.timeout(10000) });
let isPolling = false, pollTimer = 0;

// Asks once a second while somebody can see the answers, and never twice at once.
async function poll() {
  clearTimeout(pollTimer);
  if (isPolling || server.isDown || server.needsKey || !showsLive()) return;
  isPolling = true;
  const began = performance.now();
  try {
    await look();
  } catch (error) {
    if (!(error instanceof Refused)) noteDown();
    else noteRefusal(error.message);
  }
  isPolling = false;
  pollTimer = setTimeout(poll, Math.max(250, 1000 - (performance.now() - began)));
}

async function look() {
  showRequests((await (await get("v1/requests")).json()).data);
  await showOpenRows();
  if (haveStates()) showModels((await (await get("v1/models")).json()).data);
  try {
    const metrics = readMetrics(await (await get("metrics")).text());
    showMetrics(metrics);
    const notes = [];
    // Of several models, the list has the states.
    if (sum(metrics, "sleep_level") && !haveStates()) notes.push("The engine is asleep: it has given memory back.");
    if (tabStorage.getItem(KEY)) notes.push("Only requests that your key may see are shown.");
    noteRefusal(notes.join(" "));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    for (const each of [...charts.map(({ node }) => node), byId("loop")]) each.hidden = true;
    noteRefusal(`The metrics cannot be read: ${error.message}`);
  }
}

function noteRefusal(text) {
  setText(byId("live-note"), text);
  byId("live-note").hidden = !text;
}
