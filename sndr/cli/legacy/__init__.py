"""Where the routing table's schema has always been found; the same file as ``schemas/routing_schema.json``."""
