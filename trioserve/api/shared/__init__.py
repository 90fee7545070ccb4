"""From results to the bytes of an answer.

responses            the structs of chats and completions
usage, errors        the structs that answers share
descriptions         the structs of answers about models, tokens and the server
chunks               the events of a stream
anthropic            the structs of Anthropic's answers, events and errors
blocks               the blocks of Anthropic's answers
logprobs             log probabilities in the forms of chats and of completions
pooling_responses    the structs of vectors, labels and scores
"""
