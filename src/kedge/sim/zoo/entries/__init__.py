"""The entries of the zoo, by the component whose safeguard each takes out. `kedge.sim.zoo.entry` declares them."""
