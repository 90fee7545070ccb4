"""The parts of load generators: clients, probes, statistics, reports, plots.

They know HTTP and no engine. The scripts in bench/ use them, too.
"""
