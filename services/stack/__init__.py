"""``nereid serve``: the whole stack on one machine, behind one command."""
