"""The life of one HTTP request, whatever its body means: connections, scopes, records, keys.

This room knows hypercorn and quart, and no JSON of any API: that is api/. Only connection/ uses
hypercorn's private names.

connection   hypercorn's connections, mended
bodies       memory and time of the bodies of requests
wire         answers that no dialect shapes: errors, request ids, CORS, Host
record       the record of a request: progress, times, log, traces
keys         the keys of clients, and their limits over all processes
live         the requests that are being answered
streams      streams that outlive their connections
audit        finds things that outlive their request

scope, state, route, answer and time_limit hold them together.
"""
