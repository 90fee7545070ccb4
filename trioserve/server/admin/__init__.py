"""The endpoints of operators, and endpoints of no dialect.

status          health, metrics and the version
probes          answers that need no quart
models          the models that are served
live_requests   running requests, which clients can see, cancel and take up again
invocations     SageMaker's one path for all requests
routes          the table of these endpoints
"""
