"""`trioserve bench serve`, and the parts that other load generators share.

This room knows HTTP, and no engine: any server with OpenAI's API can be measured. The scripts
in bench/ import these parts, too. The doors are config.BenchServeConfig and
command.run_bench_serve; this package imports neither, so that --help is fast.

client              a keep-alive connection, and the ways in which requests fail
measured_servers    addresses, labels and models
clients, open_loop  requests after each other, or when they fall due
probe               asks /health meanwhile
rounds, statistics, texts, report, table, plot
                    turns, percentiles, words, saved results, and how they are shown
generation          loads of streamed text: requests, answers, figures, table, plot
config, command     the command; `progress` is its bar
"""
