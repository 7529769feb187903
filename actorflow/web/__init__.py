"""The live view: a page inside the application's own process that shows what a graph does now.

::

    async with af.web.serve(graph, port=8080) as view:
        print(view.url)
        ...

    app.add_subapp("/graph", af.web.create_app(graph))
"""

from actorflow.web.app import View, create_app, serve

__all__ = ["View", "create_app", "serve"]
