"""The renderer workers: threads and processes under limiters.

workers         runs work in threads, short work first
turns           the order in which work gets a thread
waiting_room    bounds what may wait, in requests and characters
jobs            one request's work, from waiting to done
processes       chat templates in processes that can be killed
together        several pieces of work at once
"""
