"""Compile the kernels of `bids_gevnet.compiled` when a wheel or an editable install is made.

With a C++ compiler the wheel is one for this platform, without one it is pure Python and the app
runs on its PyTorch code. BIDS_GEVNET_COMPILE=never makes the pure wheel in any case, =always fails
where nothing can be compiled.
"""

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("bids_gevnet", "compiled")


class CompileKernels(BuildHookInterface[Any]):
    """Add the compiled library to a wheel, and name the platform in the wheel's tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile in place; an editable install finds the library there."""
        wanted = os.environ.get("BIDS_GEVNET_COMPILE", "")
        if wanted == "never":
            return
        library = Path(self.root) / FOLDER / "kernels.so"
        build = runpy.run_path(str(Path(self.root) / FOLDER / "build.py"))
        try:
            build["build"](library)
        except build["NoCompilerError"] as error:
            if wanted == "always":
                raise
            library.unlink(missing_ok=True)
            self.app.display_warning(f"No compiled kernels, PyTorch takes their place: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(str(FOLDER / library.name))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # the library does not know Python at all
