"""`trioserve run-batch`: a file of requests in, a file of answers out, in OpenAI's format.

The output file records the finished work: each of its lines names the line of the input
that it answers. So a batch goes on after any interruption. This room speaks to a server
over HTTP, or to an engine of its own through the server's app in memory; it knows neither
tokens nor steps.

The doors are config.BatchConfig and command.run_batch. This package imports neither, so
that --help is fast.

config     the options
lines      reads the input as a stream of lines
request    checks one line, and takes it apart
record     the lines of the output, and the lines of an earlier run
output     the output file: locked, mended, and written by one task
sending    sends one request, and waits and tries again where that may help
askers     the ways to a server: over HTTP, or in memory
progress   the bar, the requests that wait meanwhile, and the closing line
work       one batch: readers, senders and the writer in one nursery
command    the exit code, and the signals
"""
