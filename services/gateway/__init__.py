"""Writes the configuration of Envoy, which gives REST and gRPC-Web."""
