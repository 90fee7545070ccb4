"""Parts that benches share: clients, processes, probes, statistics, tables, plots.

Each module has one job. A script in bench/ imports them as ``kit.NAME``, because Python
puts the script's own folder first on the path. Nothing here imports a bench.
"""
