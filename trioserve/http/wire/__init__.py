"""From results to the bytes of an answer.

responses            the structs of answers and errors
chunks               the events of a stream
logprobs             log probabilities in both of OpenAI's forms
usage                counts the tokens of an answer while it is read
pooling_responses    the structs of vectors, labels and scores
"""
