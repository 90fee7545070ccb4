"""The renderer workers: threads and processes that do the work of rendering.

threads         RendererWorkers: runs blocking calls in threads
processes       TemplateProcesses: runs chat templates in processes that can be killed
turns           the order of the calls that wait: short ones first, and none for ever
waiting_room    the limit of requests and characters that may wait
together        runs several awaitables at once
"""
