"""Streams that outlive their connections: kept alive, resumed, stored."""
