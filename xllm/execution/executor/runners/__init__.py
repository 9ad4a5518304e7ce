"""Runners: ways to launch a forward pass. ``eager`` takes every batch and is what others equal."""
