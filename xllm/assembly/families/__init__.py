"""Serving families, one file each, found by name: ``build`` makes what stands behind the doors."""
