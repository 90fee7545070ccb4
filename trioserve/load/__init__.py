"""Asks servers of the OpenAI API: one request at a time, or the load of many clients.

This room knows HTTP, and no engine. Any server of that API can be asked.

client     a keep-alive connection, and the ways in which requests fail
"""
