"""One script for each table or figure; each writes into results/."""
