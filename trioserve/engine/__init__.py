"""The engine: it owns requests and the loop that steps the device.

It works with token ids. It does not know text, HTTP or tensor libraries. The doors are
`Engine.run`, which lives in a nursery, and two ways to open a request:
`TokenEngine.open_stream` for models that generate, `TensorEngine.open_request` for models
that pool. A request is aborted by leaving its block. `TokenStream.stop` ends a single
sequence early, and `Engine.close_requests` ends all requests with an error.

engine, requests                        the base of both engines, and its requests
core, loop                              the protocol of a core, and the loop that steps
leaks                                   finds work that outlives its request
backlog, peer_work                      the open work of each client, also of other engines on
                                        the same core, and the expected times of a request
generation/  pooling/                   one engine each, with its core
process/                                cores in another process
"""
