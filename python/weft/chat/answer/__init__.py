"""What an assistant says, read from the text that it writes. No dialect, and no engine, is named here."""
