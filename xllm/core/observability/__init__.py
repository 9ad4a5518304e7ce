"""Logging and metrics: how facts reach people and Prometheus.

Owns the log format and the metric catalogue. Observing calls live where each fact is known.
"""
