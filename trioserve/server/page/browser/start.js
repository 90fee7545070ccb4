"use strict";

// The start, behind all other scripts.

showKeyButton();
loadPanel();
fitScreen();
connect();
openFromAddress();
if (hasRoom.matches && tabStorage.getItem(OPEN)) openList();
byId("prompt").value = tabStorage.getItem(DRAFT) ?? "";
fitHeight(byId("prompt"));
// The keyboard of a touch screen would cover the half of a page that nobody has read.
if (!isTouch.matches) byId("prompt").focus();
