"""report.html: one page that needs nothing else, not even a script."""
