"""The keys of clients, their use, and the other processes that count it."""
