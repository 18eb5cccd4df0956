"""One script for each table or figure; each writes into results/."""

# An end by Ctrl-C is one line from here on.
import specjax  # noqa: F401
