"""`./baton app`: the deployment tutorial's start_app.py. The gateway, a continuous batching server and a
static batching server, each in background (docs/programs.md). Standard library only."""
