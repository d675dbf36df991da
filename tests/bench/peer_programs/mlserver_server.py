"""MLServer as its command line starts it, and the shim."""

import sys

import model_config_shim

model_config_shim.install()

from mlserver.cli import main  # noqa: E402 - the shim comes first

# Its workers import this file, too.
if __name__ == "__main__":
    sys.argv = ["mlserver", "start", sys.argv[1]]
    main()
