"""``python -m tracekit``: the command line, where its folder is not on the PATH."""

from tracekit_start import main

if __name__ == "__main__":
    main()
