"""Records of requests: progress, times, counts, the request log, traces."""
