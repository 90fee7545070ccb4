"""Speaks HTTP and JSON: requests in, answers and server-sent events out.

This room knows quart, hypercorn and the engines of frontend/. It does not know tensors,
blocks or steps. No other room uses quart, and only connection/ uses hypercorn's private
names.

The doors: ServerState holds the objects that all handlers share. create_http_app makes
the ASGI app. guard_connections, make_config and raise_descriptor_limit prepare hypercorn and
its process.
"""
