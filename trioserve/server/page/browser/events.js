"use strict";

// Events that the server sends.

// Yields the data of each event, and null for the last one. What has come of a line waits in
// parts, so that a long one is joined once.
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [], data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const [first, ...lines] = value.split("\n");
    parts.push(first);
    for (const next of lines) {
      const line = parts.join("").replace(/\r$/, "");
      parts = [next];
      if (line.startsWith("data:")) data.push(line.slice(5));
      if (line || !data.length) continue;
      const text = data.join("\n").trim();
      data = [];
      yield text === "[DONE]" ? null : readEvent(text);
    }
  }
}

function readEvent(text) {
  let event = null;
  try { event = JSON.parse(text); } catch { /* See below. */ }
  if (event === null || typeof event !== "object") throw new Refused(502, "A part of the answer is not a JSON object.");
  return event;
}
