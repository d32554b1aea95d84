"""Questions about presets, answered from the catalog."""
