"""Catalog to routing table."""
