"""Compiles the extension modules of the package for a wheel, or into the tree of an editable install.

Without a C compiler all stays Python, with a warning. ``ACTORFLOW_CORE=0`` leaves it out. With ``ACTORFLOW_CORE=1`` it
is an error if it cannot be compiled, for CI and for wheels that are published.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    "actorflow/core/compiled.pyx",
    "actorflow/ops/cpu/cached.pyx",
    "actorflow/ops/cpu/loops.pyx",
    "actorflow/ops/cpu/narrow.pyx",
    "actorflow/ops/cpu/trees.pyx",
    "actorflow/ops/onednn/calls.pyx",
)


class CoreBuildHook(BuildHookInterface[Any]):
    """Makes the extension modules."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have what was made in the wheel."""
        wanted = os.environ.get("ACTORFLOW_CORE", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        targets = [Path(self.root, source).with_suffix(suffix) for source in SOURCES]
        try:
            for target in targets:
                if version != "editable" or not _is_newer(target, Path(self.root, "hatch_build.py")):
                    _compile(Path(self.root), target)
        except (Exception, SystemExit) as error:
            if wanted == "1":
                raise
            self.app.display_warning(
                f"actorflow: no compiled core, each op costs about ten times as much: {type(error).__name__}: {error}"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"] += [str(target.relative_to(self.root)) for target in targets]


def _is_newer(target: Path, recipe: Path) -> bool:
    """Whether a module was compiled since its source and its recipe changed: another extra need not wait for it."""
    sources = recipe, target.with_name(target.name.partition(".")[0] + ".pyx")
    return target.exists() and target.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def _compile(root: Path, target: Path) -> None:
    """Compile the source beside a module."""
    import numpy as np
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    # What is compiled so runs with every release of NumPy 2, whichever it was compiled with.
    macros = [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"), ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION")]
    relative = target.relative_to(root).with_name(target.name.partition(".")[0] + ".pyx")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, relative)
        source.parent.mkdir(parents=True)
        source.write_bytes((root / relative).read_bytes())
        before = Path.cwd()
        os.chdir(folder)  # tracebacks then show the name of the source from here
        try:
            macros.append(("ACTORFLOW_SOURCE", f"{zlib.crc32(relative.read_bytes())}U"))
            found, name = [np.get_include()], ".".join(relative.with_suffix("").parts)
            # Square roots in vectors, and the same bits as NumPy's where a product is added.
            flags = ["-fno-math-errno", "-ffp-contract=off"]
            if "-g" not in os.environ.get("CFLAGS", ""):
                flags.append("-g0")  # what debuggers read would be seven eighths of a module
            extension = Extension(
                name,
                [str(relative)],
                include_dirs=found,
                define_macros=macros,
                extra_compile_args=[] if os.name == "nt" else flags,
            )
            modules = cythonize([extension], quiet=True)
            command = build_ext(Distribution({"ext_modules": modules}))
            command.ensure_finalized()
            command.build_temp = command.build_lib = folder
            command.run()
            target.write_bytes(Path(command.get_outputs()[0]).read_bytes())
        finally:
            os.chdir(before)
    target.chmod(0o755)
