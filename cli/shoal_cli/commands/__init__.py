"""One module a command. Each imports what is heavy inside its function, so that `shoal --help` is quick."""
