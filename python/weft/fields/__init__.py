"""Metadata of struct fields, and formatting of invalid values for error messages."""
