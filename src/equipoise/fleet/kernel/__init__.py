"""The fleet kernel: arrays in, arrays out, all of it compiled. `equipoise.fleet.twin` is the slow, obvious other."""
