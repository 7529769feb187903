"""The contenders, as tables name them."""

__all__ = ["CONTENDERS", "OURS", "TORCH", "TORCH_LAST"]

OURS = "actorflow"
TORCH, TORCH_LAST = "torch eager", "torch eager, channels last"
CONTENDERS = (OURS, TORCH, TORCH_LAST)
