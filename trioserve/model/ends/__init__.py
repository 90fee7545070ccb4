"""The two ends of a step: the input of the layers, and the use of their output.

protocols   the protocols of both ends for the runner
whole       a whole model reads tokens and samples
stage       a stage of a pipeline receives and sends instead, at one end or at both
consensus   processes that share the layers decide together which tokens come next
"""
