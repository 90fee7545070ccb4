"""HTTP as programs speak it to servers.

client   the connection of bench, batch and top. `trioserve chat` goes through proxies and takes
         httpcore2 for that; a request costs it three times the processor's time
events   the reader of streamed answers
reasons  why there is no answer
"""
