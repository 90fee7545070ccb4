"""LoRA adapters: small matrices that change the products of a model, for some rows of a step.

The ways to run layers compute them (runtimes/).

description     an adapter's matrices, and the protocol of layers that run adapters
"""
