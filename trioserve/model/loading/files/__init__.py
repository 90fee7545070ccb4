"""All facts about a model that are known before its weights are read.

facts               all of them together
config_file         config.json
generation_config   generation_config.json
architecture        the architectures that can be served
positions           the largest number of tokens that a model can take
cache_outline       the facts that decide the KV cache
"""
