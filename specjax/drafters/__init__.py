"""Sources of drafts, one file each, behind one small protocol."""
