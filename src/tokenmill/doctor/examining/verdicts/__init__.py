"""What the experiments mean: each module looks at one thing, and gives a line of the table and its findings."""
