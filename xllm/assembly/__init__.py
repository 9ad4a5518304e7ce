"""The only room that knows everybody: builds one serving family and injects every class.

Owns start-up order, process launch and the wiring. No scheduling, no math, no HTTP.
"""
