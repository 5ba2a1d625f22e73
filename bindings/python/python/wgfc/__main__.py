"""The command line: ``python -m wgfc compile model.onnx``, or ``wgfc`` where the package's scripts are on the PATH."""

import os
import sys
from typing import NoReturn

from wgfc._wgfc import command_line


def main() -> NoReturn:
    """Runs the command line, which ``wgfc --help`` describes, and ends the process with its exit code."""
    # Without a desktop, Mesa's device-selection layer prints errors to stderr.
    if sys.platform == "linux" and "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["NODEVICE_SELECT"] = "1"
    command_line(["wgfc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
