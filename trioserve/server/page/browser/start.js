"use strict";

// The start, behind all other scripts.

showKeyButton();
showView();
connect();
byId("prompt").focus();
