"""baton-gateway: the deployment tutorial's client app. One address before several completion servers
(static and continuous batching) and several OpenAI keys (docs/programs.md). Its HTTP server is waitress."""
