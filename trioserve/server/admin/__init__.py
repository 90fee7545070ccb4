"""The handlers, one file an endpoint.

chat, completions, tokenize             models that generate text
embeddings, classify, score, cohere     models that pool
admin                                   health, metrics, models, version
generation_steps, pooling_steps         steps that several handlers share
sse                                     the body of a streamed answer
"""
