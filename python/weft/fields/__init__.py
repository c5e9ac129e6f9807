"""What is known of fields, and how an error shows what was given for one."""
