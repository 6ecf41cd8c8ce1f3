"""What Python users call: one module per public function, named as the function."""
