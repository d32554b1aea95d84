"""Sans-I/O codecs."""
