"""Evidence-based routing tables and a live-reconfigurable gateway for self-hosted model servers."""

__version__ = "0.1.0"
