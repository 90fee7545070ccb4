"""The test kit: fake devices, tiny models, and a whole server in one process.

fake_device    executors that compute tokens by arithmetic
server         a server over a fake device
models, encoders, tokenizer, processors    tiny random models and what belongs to them
processes      child processes that tests can hold and kill
"""
