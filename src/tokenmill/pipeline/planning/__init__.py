"""What a run will do: request, split, freeze, compare, open the run of a store."""
