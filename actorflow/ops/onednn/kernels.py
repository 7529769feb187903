"""All kernels of the library; importing this module loads libdnnl, or says why not, and registers them."""

from actorflow.ops.onednn.library import libdnnl

libdnnl()  # before anything is registered

from actorflow.ops.onednn import conv, functions, inner, norm, pool, recurrent, resize  # noqa: E402, F401
