"""Code that tests of several areas share."""
