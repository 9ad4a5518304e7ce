"""What crosses a process or plane boundary: one file per receiver, values without behaviour."""
