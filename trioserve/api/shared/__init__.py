"""The parts that several dialects have: fields, steps of generation, answers.

requests          the fields of requests to models that generate
structured        the form of an answer
messages          conversations, as clients send them
message_mappings  conversations in the renderer's form
tools             the tools that a model may call
refused           fields that are refused or ignored
generation        from these fields to SamplingParams and to a stream
sse               a stream as server-sent events, or as lines of JSON
chunks            the events of a stream as bytes
logprobs          log probabilities of answers and prompts
cut_object        the arguments of calls as objects
"""
