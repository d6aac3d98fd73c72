"""What ``pipesim validate`` prints: one module for each kind of measurement."""
