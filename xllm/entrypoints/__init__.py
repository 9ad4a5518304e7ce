"""The doors: command line, HTTP, offline API.

Owns flags, routes and what people see. Knows neither scheduling nor devices, and reaches the rest
through ``assembly``.
"""
