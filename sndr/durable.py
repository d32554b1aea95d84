"""Replace a file so that a crash leaves the old content or the new one, never a mix."""
