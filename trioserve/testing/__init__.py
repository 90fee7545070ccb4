"""The test kit: fake devices, tiny models, and a whole server in one process.

fake_device                    executors that compute tokens by arithmetic
server                         a server over a fake device
renderers                      a model's folder -> its renderer
models, encoders               tiny models with random weights
tokenizer, processors          tiny tokenizers and image processors
processes                      cores behind a connection, in the same event loop
"""
