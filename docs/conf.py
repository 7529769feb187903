"""How the site is built: ``make docs``."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]

from actorflow import __version__  # noqa: E402  of this folder's package, installed or not

project = "actorflow"
author = "The actorflow authors"
copyright = "The actorflow authors"
release = version = __version__

#: Types that signatures name, instead of what they stand for.
ALIASES = [
    "npt.ArrayLike",
    "npt.DTypeLike",
    "Array",
    "Fetch",
    "Feeds",
    "Initializer",
    "Operand",
    "Numbers",
    "Border",
    "Axis",
]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "names",
    "operation_tables",
    "command_line",
]
exclude_patterns = ["extensions"]
nitpicky = True
default_role = "name"
suppress_warnings = ["ref.python"]  # two classes of one name, of which the first is taken
add_module_names = False
toc_object_entries = False  # pages list their names at the top; a tree of them on each page costs a third of the build
modindex_common_prefix = ["actorflow."]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name.rpartition(".")[2] for name in ALIASES}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 120
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = False
napoleon_custom_sections = [("Class attributes", "Attributes")]

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"actorflow {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r"^\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
