"""What pyproject.toml cannot say: the start-up line goes beside the package, not into it."""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.command.build_py import build_py

LINE = os.path.join("memguard", "startup", "memguard_startup.pth")


class BuildWithStartupLine(build_py):
    """Puts the line where Python's `site` reads it: at the root of site-packages.

    What is built becomes the wheel, so pip installs the line, lists it and removes it again. An
    editable install builds nothing; there the line goes straight into the wheel that pip is given.
    """

    def run(self) -> None:
        super().run()
        self.copy_file(LINE, self._root())

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        line = os.path.join(self._root(), os.path.basename(LINE))
        return [*super().get_outputs(include_bytecode), line]

    def _root(self) -> str:
        if not self.editable_mode:
            return self.build_lib
        install = self.get_finalized_command("install")
        os.makedirs(install.install_purelib, exist_ok=True)
        return install.install_purelib


setup(cmdclass={"build_py": BuildWithStartupLine})
