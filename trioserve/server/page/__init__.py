"""The documents for people: the page at / and the description of the API at /docs.

Each is one HTML document, which names no other address, so a browser asks this server alone.
browser/ has both in parts, one for each topic; the server joins them, and no step of a build
makes them. The page reads the endpoints of the API like any other client. reference.html is
a template of jinja2, which is filled from the OpenAPI document.

This folder knows no requests and no state: handler.py answers with them.
"""

from .document import Document, load_page
from .reference import render_reference

__all__ = ["Document", "load_page", "render_reference"]
