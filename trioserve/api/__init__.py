"""The dialects of the API: one folder each, with requests, handlers, answers and events.

chat, completions, responses, anthropic   models that generate text
pooling, cohere                           models that pool
ollama                                    both
tokens                                    text to token ids and back
decode                                    from the bytes of any body to a checked struct
shared                                    fields, steps and answers that several dialects have
"""
