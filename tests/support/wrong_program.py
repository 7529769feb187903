"""Mistakes of users, each of which the type checkers of `tests/test_typing.py` must catch in its own line."""

import actorflow as af
import actorflow.array as xp

graph = af.Graph("g")
x = graph.blob("x", ("batch", 4))
inner = graph.op("inner", af.ops.Inner())
model = af.Model.of(graph)


async def wrong() -> None:
    graph.blob("y", shape=(4,), dtpye="float32")  # 1 a misspelled argument
    inner(x, "w")  # 2 a text where a blob is expected
    inner(x, x).upper()  # 3 a blob has no such method
    print(graph["x"].shap)  # 4 a misspelled attribute of a named blob
    (await graph.run({x: [1]}))[x].sumup()  # 5 a result is an array
    graph.run_sync({x: [1]}).tolist()  # 6 a result is a mapping
    (await graph.run({x: [1]}, timeout="1 s"))[x]  # 7 a text where a number is expected
    await model.batched(max_row=4).run({"x": [1]})  # 8 a misspelled option
    model.batched().session(weight="much")  # 9 a text where a number is expected
    af.pipeline.source(range(3)).map(str).batch(2).map(abs)  # 10 lists of texts, where arrays are expected
    af.pipeline.source(["a"]).map(abs)  # 11 a text has no absolute value
    af.pipeline.source([1]).map(float, concurency=2)  # 12 a misspelled option
    value, _slope = af.value_and_grad(xp.sum)(xp.ones(3))
    value.bit_length()  # 13 an array is no int
    xp.softmax(xp.ones(3))  # 14 it is in xp.nn
    af.ops.relu(3)  # 15 a number where a blob is expected
    af.cond(x, lambda: x, lambda: x).decode()  # 16 a blob is no bytes
    af.serve.create_app({"g": "graph"})  # 17 a text where a model is expected
    for _ in x:  # 18 a blob has no rows
        pass
    graph.function("f", abs, outputs=3)  # 19 a number where a type is expected
