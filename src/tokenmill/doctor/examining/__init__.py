"""A function is tried out in processes of its own before a run. `examination.examine` begins."""
