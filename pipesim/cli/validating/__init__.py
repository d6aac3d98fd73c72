"""What ``pipesim validate`` prints: one file for one kind of measurement."""
