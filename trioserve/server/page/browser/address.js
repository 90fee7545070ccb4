"use strict";

// The page is served at the root of the API, with or without a slash behind it. So all
// addresses begin with its own path, and a proxy may put it below any other.
const ROOT = location.pathname.replace(/\/?$/, "/");

// The import map, which is read next, is relative to the address.
if (location.pathname !== ROOT) history.replaceState(history.state, "", ROOT + location.search + location.hash);
