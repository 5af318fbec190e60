"""How decisions are recorded: the recorder, the rules that choose what is kept, the counts, and the durable log."""
