"use strict";

// The start, behind all other scripts.

showKeyButton();
showView();
connect();
openFromAddress();
if (hasRoom.matches && sessionStorage.getItem(OPEN)) openList();
byId("prompt").focus();
