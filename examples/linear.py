"""The example of the Purine2 paper's bi-graph: a linear layer, connected by hand, and a softmax behind it.

Run it with ``python examples/linear.py``.
"""

import numpy as np

import actorflow as af

graph = af.Graph("linear")
x = graph.blob("x", shape=(128, 10))  # float32 on the CPU unless said otherwise
w = graph.variable("w", shape=(16, 10), init=af.nn.init.gaussian(std=0.05, seed=0))
y = graph.blob("y", shape=(128, 16))
inner = graph.op("inner", af.ops.Inner(), lane="main")
[x, w] >> inner >> [y]  # explicit, as in Purine2

p = af.ops.softmax(y)  # functional: creates the op and an inferred blob in y's graph


async def main() -> None:
    batch = np.random.default_rng(0).standard_normal((128, 10), dtype=np.float32)
    result = await graph.run({x: batch})  # sinks are fetched unless fetch=[...] says
    print(result[p].shape)  # a NumPy array
    print(result["softmax/out"].sum(axis=1)[:3].round(4))  # by name works, too


af.run(main())
