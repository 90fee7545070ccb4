"""The endpoints of operators, and endpoints of no dialect.

status          health, metrics and the version
probes          answers that need no quart
models          the models that are served
live_requests   running requests, which clients can see and cancel
resumed         streams that a client takes up again
invocations     SageMaker's one path for all requests
routes          the table of these endpoints
"""
