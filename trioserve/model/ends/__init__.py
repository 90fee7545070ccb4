"""The two ends of a step: the input of the layers, and the use of their output.

protocols   what the runner asks of both ends
whole       a whole model reads tokens and samples
stage       a stage of a pipeline receives and sends instead, at one end or at both
consensus   processes that share the layers decide together which tokens come next
"""
