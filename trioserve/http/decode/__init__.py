"""From the bytes of a body to a checked request.

body             reads a body, decodes it, and finds the engine that answers
schema           JSON in, request structs out
requests         the structs of generation and tokenizing
payloads         long strings of a chat, taken out before it is decoded
lazy_fields      fields that may be megabytes long
errors           decoder errors, in the words of the API
unsupported      fields that are refused, and why
pooling_*        the same for models that pool
"""
