"use strict";

// The chat and the live view.

const isWide = matchMedia("(min-width: 68rem)");

function showView() {
  const only = document.body.dataset.only;
  const view = only || (location.hash.startsWith("#live") ? "live" : "chat");
  document.body.dataset.view = view;
  for (const name of ["chat", "live"]) {
    if (view === name) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
  }
  poll();
}

function showsLive() {
  return document.visibilityState === "visible"
    && (document.body.dataset.view === "live" || (isWide.matches && document.body.hasAttribute("data-panel")));
}

// Some keyboards cover the page and leave its height as it was.
function fitScreen() {
  const { height, scale } = visualViewport ?? {};
  const isCovered = scale === 1 && height < innerHeight - 1;
  document.body.style.height = isCovered ? `${height}px` : "";
  // They may have moved the page up for the field, which is in sight now.
  if (isCovered) scrollTo(0, 0);
}

visualViewport?.addEventListener("resize", fitScreen);
addEventListener("hashchange", showView);
isWide.addEventListener("change", showView);
document.addEventListener("visibilitychange", () => poll());
byId("to-docs").href = `${ROOT}docs`;
