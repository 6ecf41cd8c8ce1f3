"""Why a run over many processes dies: asked of a function before the run, or of a command while it runs."""
