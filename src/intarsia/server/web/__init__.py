"""HTTP: connections, keys, bodies, routes, server-sent events, start and end of the process."""
