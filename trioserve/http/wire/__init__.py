"""From results to the bytes of an answer.

responses            the structs of answers and errors
chunks               the events of a stream
anthropic            the structs of Anthropic's answers, events and errors
blocks               the blocks of Anthropic's answers
logprobs             log probabilities in the forms of chats and of completions
pooling_responses    the structs of vectors, labels and scores
"""
