"""Structured output: compiles schemas, and says which tokens may come next.

This room wraps the library llguidance. It knows the tokenizer's file and token ids, no
torch, no HTTP and no trio. Its two sides run in different processes:

* compile.py turns the schema, regular expression or choice of a request into the text of
  a grammar, in a renderer worker;
* guide.py follows one sequence through such a grammar, and workers.py does that in threads
  beside the device.
"""
