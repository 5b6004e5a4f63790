"""What speculation gains where an API shows nothing: one file a section, run by ``__main__``."""
