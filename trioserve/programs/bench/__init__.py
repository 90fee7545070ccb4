"""`trioserve bench serve`, and the parts that other load generators share.

The command knows HTTP, and no engine: any server with OpenAI's API can be measured. The scripts
in bench/ import these parts, too. The doors are config.BenchServeConfig and
command.run_bench_serve; this package imports neither, so that --help is fast.

measuring         clients, probes, statistics, reports and plots of any load
generation        loads of streamed text: requests, answers, figures, table, plot
config, command   `trioserve bench serve`
throughput        `trioserve bench throughput`: requests directly to an engine
"""
