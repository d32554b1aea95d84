"""Thin verbs over the doors of the router."""
