"""Sleep: an engine gives memory back while nobody needs the model.

rules      when to fall asleep, and when to wake; without a clock and without I/O
view       the sleep of a core as its engine sees it, in the same process or in another one
sleeper    the sleep itself, beside the scheduler

The core sleeps, and not the engine: with several HTTP processes, the core alone knows whether
anybody needs the model. Work that comes to a sleeping core waits in its scheduler like all other
work, within the limits of time of its request. So a request does not wait for a wake-up: the core
wakes, once for all requests, and a request that is cancelled cancels no wake-up.
"""
