"""A reference server and the tiny bundled models that tests and the demo run on."""
