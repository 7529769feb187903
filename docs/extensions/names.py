"""The directive of reference pages: lists of public names, each described by its docstring.

On a page, and on a code host, the names of a module stand in a block; the site has their descriptions in its place::

    ```{names} actorflow.ops
    Inner inner
    ```

``*`` stands for the public names of the module that no page lists.
"""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry, PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxRole
from sphinx.util.nodes import find_pending_xref_condition

from actorflow.ops import Operation


class Names(Directive):
    """Descriptions of the names of one module."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        environment = self.state.document.settings.env
        found = [*self._lines(environment)]
        if not found:  # no name of the module is left for this list
            return []
        lines = ["````{eval-rst}", *found, "````"]
        holder = nodes.Element()
        self.state.nested_parse(StringList(lines, environment.docname), self.content_offset, holder)
        return holder.children

    def _lines(self, environment: BuildEnvironment) -> Iterator[str]:
        # What is public under several names is described under the first, whatever order pages are read in.
        module, names = self.arguments[0], " ".join(self.content).split()
        names = [name for each in names for name in (unlisted(module) if each == "*" else [each])]
        if len(names) > MANY:
            yield from (" ".join(f":py:obj:`~{module}.{name}`" for name in names), "")
        for name in names:
            value = getattr(import_module(module), name)
            first = first_names().get(id(value), f"{module}.{name}")
            if inspect.isclass(value) and first != f"{module}.{name}":
                yield from (f".. py:class:: {module}.{name}", "", f"   The same as :py:obj:`{first}`.", "")
            else:
                yield from (*described(f"{module}.{name}", value), "")


#: A list of names on a page.
LIST = re.compile(r"^```\{names\} (?P<module>\S+)\n(?P<names>.*?)^```$", re.MULTILINE | re.DOTALL)


def unlisted(module: str) -> list[str]:
    """Public names of a module that no page of the reference lists."""
    pages = Path(__file__).parents[1].joinpath("reference").glob("*.md")
    lists = [found for page in pages for found in LIST.finditer(page.read_text(encoding="utf-8"))]
    known = {name for found in lists if found["module"] == module for name in found["names"].split()}
    return [name for name in import_module(module).__all__ if name not in known]


#: More names than this are listed above their descriptions.
MANY = 3
#: Where names are described that several modules have; of others, the only module that has them.
FIRST = ("actorflow", "actorflow.devices", "actorflow.array", "actorflow.ops")


def first_names() -> dict[int, str]:
    """The name that a class is described under, by its identity."""
    return {
        id(value): f"{module}.{name}"
        for module in reversed(FIRST)
        for name in import_module(module).__all__
        if inspect.isclass(value := getattr(import_module(module), name))
    }


def described(name: str, value: Any) -> tuple[str, ...]:
    """Directives of autodoc for a value."""
    if inspect.ismodule(value):
        return (f".. py:module:: {name}", "   :no-index-entry:", "", f"{inspect.getdoc(value)}".partition("\n")[0])
    if inspect.isclass(value):
        options = ("   :show-inheritance:", *(() if issubclass(value, Operation) else ("   :members:",)))
        return (f".. autoclass:: {name}", *options)
    if callable(value):
        return (f".. autofunction:: {name}",)
    return (f".. py:data:: {name}", f"   :value: {value!r}")


class Named(SphinxRole):
    """What docstrings have in backticks: a name that is described somewhere, in short, or any code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        context = {key: self.env.ref_context.get(key) for key in ("py:module", "py:class")}
        reference = addnodes.pending_xref(
            "", nodes.literal("", self.text), refdomain="", reftype="name", reftarget=self.text, **context
        )
        reference["refdoc"] = self.env.docname
        return [reference], []


def resolve(app: Sphinx, environment: BuildEnvironment, node: nodes.Element, content: nodes.Element) -> Any:
    """Find what is named in short, ``Graph.run``, among what is described; leave other names as they are."""
    if node["reftype"] != "name" and node.get("refdomain") != "py":
        return None
    wanted = node["reftarget"].removeprefix("~").rstrip("()")
    domain = environment.get_domain("py")
    assert isinstance(domain, PythonDomain)
    name = find(domain.objects, wanted, node.get("py:module"), node.get("py:class"))
    if name is None:
        return content
    return domain.resolve_xref(environment, node["refdoc"], app.builder, "obj", name, node, content) or content


def find(known: Mapping[str, ObjectEntry], wanted: str, module: str | None, owner: str | None) -> str | None:
    """The full name of what is meant: of the class or module that speaks of it, else wherever there is one alone."""
    if wanted.startswith(("af.", "actorflow.")):
        # As users write it, or as a type's own module has it.
        full = "actorflow." + wanted.partition(".")[2]
        if full in known:
            return full
        wanted = wanted.rpartition(".")[2]
    for around in (f"{module}.{owner}", owner, module):
        if f"{around}.{wanted}" in known:
            return f"{around}.{wanted}"
    found = [name for name in known if name.endswith(f".{wanted}")]
    if "." not in wanted:  # an attribute is of its class alone
        found = [name for name in found if known[name].objtype in {"class", "exception", "function", "module"}]
    public = [name for name in found if name.count(".") == min(other.count(".") for other in found)]
    return public[0] if len(public) == 1 or (public and wanted[0].isupper()) else None


def leave_builtins(_app: Sphinx, document: nodes.document) -> None:
    """Have ``bool`` in a signature be Python's, and not the dtype of lazy arrays."""
    for reference in [*document.findall(addnodes.pending_xref)]:
        if reference.get("reftype") == "class" and hasattr(builtins, reference["reftarget"]):
            shown = find_pending_xref_condition(reference, "resolved")
            reference.replace_self((shown or reference).children)


def public_bases(_app: Sphinx, _name: str, value: type, _options: object, bases: list[Any]) -> None:
    """Show what a class derives from for users: not what its own module shares."""
    shown = [kind for kind in value.__mro__[1:] if not kind.__name__.startswith("_")]
    bases[:] = [shown[0] if getattr(base, "__name__", "").startswith("_") else base for base in bases]


def name_aliases(
    _app: Sphinx, _what: str, _name: str, _value: object, _options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Have signatures name an alias as the program does."""
    first, second = (part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) for part in (arguments, result))
    return first, second


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.add_directive("names", Names)
    app.add_role("name", Named())
    app.connect("missing-reference", resolve)
    app.connect("doctree-read", leave_builtins)
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-process-signature", name_aliases)
    return {"parallel_read_safe": True}
