"""Sampling rules that edit logits before a token is chosen, one file each.

Each file exports ``Processor``; ``ORDER`` says in which order they apply.
Processors own their per-row state; they do not choose tokens.
"""

# Penalties see the model's logits; the user's bias is then exact; bans come last, so that nothing
# lifts a banned token again.
ORDER = ("penalties", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens")
