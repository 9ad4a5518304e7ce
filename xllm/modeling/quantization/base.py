"""What a quantization format implements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from xllm.hardware.kernels.tokens import Tokens
    from xllm.modeling.layers.linear import Linear


class QuantMethod(Protocol):
    """The stored form of linear weights. Stateless: one instance serves all layers of a model.

    Order of calls per layer: ``create_weights``, ``load_rows`` until every row is filled,
    ``after_load``, then ``apply`` any number of times.
    """

    takes_scaled: bool  # ``load_rows`` takes ``weights.scaled.ScaledTensor`` too

    def create_weights(self, layer: Linear) -> None:
        """Allocate the layer's storage as attributes of ``layer``."""
        ...

    def load_rows(self, layer: Linear, start: int, weight: Tensor) -> None:
        """Fill output rows ``start ..`` from ``weight`` (rows, K), of any float dtype."""
        ...

    def after_load(self, layer: Linear) -> None:
        """Pack for the platform into ``layer.packed`` and free the unpacked storage."""
        ...

    def apply(self, layer: Linear, x: Tokens) -> Tensor:
        """``x (T, K) -> (T, N)`` including the bias."""
        ...

    def for_head(self) -> QuantMethod:
        """The method of the language-model head: this one, or one that loses less."""
        ...

    def check_experts(self) -> None:
        """Whether models with experts can be loaded, whose stacked weights stay in their dtype.

        Raises:
            ValueError: they cannot: most of such a model would be left unquantized.
        """
        ...
