"""The scheduler of models that generate text.

scheduler    admits, grows, preempts and frees sequences
sequence     one sequence, and the flow of one request's sequences
queue        flows that wait, in the order of their turns
turns        whose prompt is computed next
draft        a step while it is planned
blocks       KV blocks, shared by prefix
"""
