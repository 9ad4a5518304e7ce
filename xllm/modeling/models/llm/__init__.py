"""Decoder-only language models, one file per ``model_type``.

Owns what makes each family itself; the shared skeleton is ``models.decoder``.
"""
