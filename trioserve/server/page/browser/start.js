"use strict";

// The start, behind all other scripts.

showKeyButton();
showView();
connect();
openFromAddress();
byId("prompt").focus();
