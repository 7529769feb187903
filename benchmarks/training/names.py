"""The contenders, as tables name them."""

__all__ = ["CONTENDERS", "NUMPY", "OURS", "TORCH", "TORCH_LAST", "TORCH_LIBRARY"]

NUMPY, TORCH_LIBRARY = "NumPy kernels", "torch kernels"
TORCH, TORCH_LAST = "torch eager", "torch eager, channels last"
OURS = (NUMPY, TORCH_LIBRARY)
CONTENDERS = (*OURS, TORCH, TORCH_LAST)
