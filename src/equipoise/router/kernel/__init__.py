"""All of the router that is compiled: its tables and what happens to them. Handed over by address."""
