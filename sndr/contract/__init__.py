"""The routing-table contract as a pure library: load a table, decide where a request goes."""
