"""Pure core: values and machines, standard library only."""
